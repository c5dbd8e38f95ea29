"""Lightning's ``EarlyStopping`` counts evaluations, and ends a run as its last round would."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes.tables import read_table
from lightning.pytorch.callbacks import Timer

from pfl_lightning.callbacks import EvaluateStartAndEnd
from pfl_lightning.callbacks.monitors import CheckMonitors, early_stop
from pfl_lightning.cli import main
from pfl_lightning.cli.execution import is_finished
from pfl_lightning.errors import PflError
from pfl_lightning.runs.resume import find_resume, has_stopped

RUN = Path("runs/FedAvg-Digits/version_0")
TINY = ["--model.network=MLP", "--model.network.hidden=[4]", "--model.eval_epochs=0", "--data.num_clients=4"]
QUICK = ["--trainer.enable_progress_bar=false", "--trainer.max_steps=20", "--trainer.val_check_interval=2"]
STOP = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/global/accuracy/mean"]
NEVER_BETTER = ["--trainer.callbacks.mode=max", "--trainer.callbacks.min_delta=2"]  # than the first evaluation


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def words(patience: int, *options: str) -> list[str]:
    return ["fit", *TINY, *QUICK, *STOP, *NEVER_BETTER, f"--trainer.callbacks.patience={patience}", *options]


def fit(patience: int, *options: str) -> None:
    main(words(patience, *options))


def evaluated() -> list[int]:
    return sorted({int(row["round"]) for row in read_table(RUN / "clients.csv")})


@pytest.mark.slow
def test_a_run_ends_when_patience_does_and_continues_with_more_of_it(refused, capsys):
    fit(2)
    out = capsys.readouterr().out
    assert "Stopped early:  after round 4 of 20: Monitored metric val/global/accuracy/mean did not improve in " in out
    assert evaluated() == [0, 2, 4]
    assert torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 4

    assert is_finished(find_resume("last", RUN.parent), 20), "for a sweep, too"
    line = "ckpt_path: EarlyStopping has ended this run after round 4; allowed: a larger trainer.callbacks."
    assert refused(*words(2, "--ckpt_path=last"))[1].startswith(line)

    fit(3, "--ckpt_path=last")
    assert "Stopped early:  after round 6 of 20: " in capsys.readouterr().out
    assert evaluated() == [0, 2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize(("patience", "stops"), [(2, 4), (3, 6)])
def test_an_evaluation_at_the_end_of_a_run_does_not_count_when_it_is_extended(patience, stops, capsys):
    fit(patience, "--trainer.max_steps=3")
    assert evaluated() == [0, 2, 3]
    fit(patience, "--ckpt_path=last")
    assert f"Stopped early:  after round {stops} of 20: " in capsys.readouterr().out
    assert evaluated() == [*range(0, stops + 1, 2)]
    for command in ("test", "validate"):
        main([command, str(RUN)])
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize(("interval", "rounds"), [(3, [0, 2, 3, 6]), (4, [0, 2, 4, 6])])
def test_an_evaluation_at_the_end_of_a_run_counts_when_it_is_extended_with_an_interval_that_has_it(interval, rounds):
    main(["fit", *TINY, *QUICK, "--trainer.max_steps=3"])  # evaluates rounds 0, 2 and 3
    more = [f"--trainer.val_check_interval={interval}", "--trainer.max_steps=6", "--ckpt_path=last"]
    main(["fit", *TINY, *QUICK, *more])
    assert evaluated() == rounds
    assert [int(row["round"]) for row in read_table(RUN / "metrics.csv") if row["val/accuracy"]] == rounds


@pytest.mark.slow
def test_a_run_that_reaches_its_threshold_says_so(refused, capsys):
    reached = words(9, "--trainer.callbacks.stopping_threshold=0")
    main(reached)
    assert "Stopped early:  after round 0 of 20: Stopping threshold reached: val/" in capsys.readouterr().out
    assert "EarlyStopping has ended this run after round 0" in refused(*reached, "--ckpt_path=last")[1]
    fit(9, "--trainer.callbacks.stopping_threshold=2", "--trainer.max_steps=2", "--ckpt_path=last")


def test_a_run_that_is_out_of_time_says_so(capsys):
    main(["fit", *TINY, *QUICK, "--trainer.max_time=00:00:00:00"])
    assert "Stopped early:  after round 0 of 20: trainer.max_time is over\n" in capsys.readouterr().out


def test_a_run_that_is_resumed_without_time_left_does_not_begin():
    trainer = SimpleNamespace(ckpt_path="last.ckpt", callbacks=[Timer({"seconds": 0})])
    line = r"^trainer\.max_time: the run has already used it up \(earlier parts count\); set a longer one$"
    with pytest.raises(PflError, match=line):
        CheckMonitors().on_fit_start(trainer, None)
    CheckMonitors().on_fit_start(SimpleNamespace(ckpt_path=None, callbacks=trainer.callbacks), None)
    CheckMonitors().on_fit_start(SimpleNamespace(ckpt_path="last.ckpt", callbacks=[Timer({"hours": 1})]), None)


def test_a_run_at_the_target_of_oracle_doubling_has_ended():
    ended = {"OracleDoubling": {"stage": 0, "arrived": True}, "RoundCheckpoint": {"best_score": 0.0}}
    for extra in (False, True):  # it may be between two evaluations
        assert has_stopped(
            {"global_step": 5, "callbacks": {**ended, EvaluateStartAndEnd().state_key: {"extra": extra}}}
        )
    assert not has_stopped({"global_step": 5, "callbacks": {**ended, "OracleDoubling": {"stage": 3, "arrived": False}}})


@pytest.mark.slow
def test_the_worst_score_is_not_taken_for_the_best(refused):
    line = "trainer.callbacks.mode must be max for val/global/accuracy/mean, of which more is better, got min"
    assert line in refused("fit", *TINY, *QUICK, *STOP)[1]  # Lightning's usual mode is min
    spread = STOP[1].replace("mean", "std")
    main(["fit", *TINY, *QUICK, STOP[0], spread, "--trainer.max_steps=1"])


def test_time_that_is_left_is_no_reason():
    for timer in (Timer({"hours": 10}), Timer()):
        trainer = SimpleNamespace(global_step=3, max_steps=20, callbacks=[timer], early_stopping_callbacks=[])
        assert early_stop(trainer) == "a callback asked for it"
