"""What a run logs that was stopped, killed or extended is what an uninterrupted one logs, cell for cell."""

import signal
from pathlib import Path

import pytest
import torch
from fakes.tables import read_table
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.callbacks import EvaluateStartAndEnd, RunFigures
from pfl_lightning.cli import main

RUN = Path("runs/FedRep-Digits/version_0")
STRAIGHT = Path("straight/FedRep-Digits/version_0")
TINY = ["--model=FedRep", "--model.network=MLP", "--model.network.hidden=[4]", "--model.eval_epochs=1"]
FEW = ["--data.num_clients=4", "--trainer.enable_progress_bar=false", "--trainer.callbacks=SparsityTracker"]

pytestmark = [pytest.mark.usefixtures("in_an_empty_folder"), pytest.mark.slow]


def fit(rounds: int, *options: str) -> None:
    main(["fit", *TINY, *FEW, f"--trainer.max_steps={rounds}", *options])


def logs_of(run: Path) -> dict[str, list[tuple[int, object]]]:
    """What TensorBoard shows of a run: the scalars, and the first and the last histograms.

    An extended run has those of its former end too, as it has the figures.
    """
    board = EventAccumulator(str(run), size_guidance={"scalars": 0, "histograms": 0}).Reload()
    scalars = {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    histograms = {
        tag: [(event.step, event.histogram_value) for event in (board.Histograms(tag)[0], board.Histograms(tag)[-1])]
        for tag in board.Tags()["histograms"]
    }
    return scalars | histograms


def assert_tables_are_those_of_a_straight_run() -> None:
    for table in ("metrics.csv", "clients.csv"):
        assert read_table(RUN / table) == read_table(STRAIGHT / table)


def assert_logs_are_those_of_a_straight_run(rounds: int, *options: str) -> None:
    fit(rounds, *options, "--trainer.default_root_dir=straight")
    assert_tables_are_those_of_a_straight_run()
    assert len(read_table(RUN / "metrics.csv")) > 2
    assert logs_of(RUN) == logs_of(STRAIGHT)
    assert "test/stored/accuracy/mean" in logs_of(RUN)
    stopped, straight = (torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in (RUN, STRAIGHT))
    assert stopped["callbacks"]["SparsityTracker"] == straight["callbacks"]["SparsityTracker"]
    assert stopped["tables"] == straight["tables"] == {"metrics.csv": rounds, "clients.csv": rounds}


@pytest.mark.parametrize(
    ("before", "rounds", "interval", "logged"),
    [
        ([3], 5, 2, 2),  # the last round is only evaluated, and logged, because it is the last
        ([3], 5, "null", 1),  # only the first and the last round are evaluated
        ([1, 3], 4, 3, 1),
    ],
)
def test_of_a_run_that_is_extended(before, rounds, interval, logged, capsys):
    every = [f"--trainer.val_check_interval={interval}", f"--trainer.log_every_n_steps={logged}"]
    fit(before[0], *every)
    for end in (*before[1:], rounds):
        fit(end, *every, "--ckpt_path=last")
    assert capsys.readouterr().err == ""
    assert_logs_are_those_of_a_straight_run(rounds, *every)


class Kill(BaseException):
    """Ends a run at once; nothing can be done about it any more."""


def test_of_a_run_that_is_killed_in_its_first_round(monkeypatch, capsys):
    def kill(*_):
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(EvaluateStartAndEnd, "on_train_batch_end", kill)
        with pytest.raises(Kill):
            fit(2)
    assert [row["round"] for row in read_table(RUN / "metrics.csv")] == ["0"]
    fit(2, "--ckpt_path=last")
    assert_logs_are_those_of_a_straight_run(2)


def test_of_a_run_that_is_killed_between_a_checkpoint_and_the_log_of_its_round(monkeypatch, capsys):
    def stop(callback, trainer, *_):
        if trainer.global_step == 3:
            signal.raise_signal(signal.SIGINT)  # the round is saved and would then be logged

    def kill(board, metrics, step):
        if step == 3:
            raise Kill
        write(board, metrics, step)

    write = TensorBoardLogger.log_metrics
    with monkeypatch.context() as patch:
        patch.setattr(RunFigures, "on_train_batch_end", stop)
        patch.setattr(TensorBoardLogger, "log_metrics", kill)
        with pytest.raises(Kill):
            fit(5, "--trainer.val_check_interval=2")
    assert [row["round"] for row in read_table(RUN / "metrics.csv")] == ["0", "1", "2", "3"]
    fit(5, "--trainer.val_check_interval=2", "--ckpt_path=last")
    fit(5, "--trainer.val_check_interval=2", "--trainer.default_root_dir=straight")
    assert_tables_are_those_of_a_straight_run()
