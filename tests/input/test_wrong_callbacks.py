"""Every callback of Lightning works with rounds, or is refused in a line that says why, before anything is written."""

from pathlib import Path

import pytest
from lightning.pytorch import callbacks as theirs

from pfl_lightning.cli import main
from pfl_lightning.errors import PflError
from pfl_lightning.runs.trainer_options import IN_EVERY_RUN, NOT_WITH_ROUNDS, check_callbacks

TINY = ["--model.network=MLP", "--model.network.hidden=[4]", "--model.eval_epochs=0", "--data.num_clients=4"]
NO_BAR = "--trainer.enable_progress_bar=false"
STOP = "EarlyStopping --trainer.callbacks.mode=max --trainer.callbacks.monitor"
BAR = {"RichModelSummary", "RichProgressBar"}
WORK = {
    "DeviceStatsMonitor --trainer.callbacks.cpu_stats=false",
    f"{STOP}=val/global/accuracy/mean",
    *("LearningRateMonitor", "ModelSummary", "TQDMProgressBar"),
    "Timer --trainer.callbacks.duration=00:01:00:00",
}
ABSTRACT = {"Callback", "Checkpoint", "ProgressBar"}
CODE_ONLY = {"LambdaCallback", "ThroughputMonitor"}  # settings cannot name functions
MINE = """
from lightning.pytorch import Callback

class Idle(Callback):
    def on_after_backward(self, trainer, pl_module):
        raise AssertionError
"""
KEEPS = """
from collections import UserDict
from pathlib import Path

import numpy as np
from lightning.pytorch import Callback

KEPT = {
    "numpy.float64": np.float64(0.5),
    "numpy.ndarray": np.zeros(2),
    "pathlib.PosixPath": Path("here"),
    "collections.UserDict": UserDict(),
    "builtins.function": lambda: 0,
}

class Keeps(Callback):
    def __init__(self, what: str):
        self.what = what

    def state_dict(self):
        return {"seen": [{"best": KEPT[self.what]}]}
"""


def fit(words: str) -> None:
    main(["fit", *TINY, "--trainer.max_steps=1", *words.split()])


def test_each_callback_of_lightning_works_or_is_refused():
    refused = {name for name in theirs.__all__ if issubclass(vars(theirs)[name], NOT_WITH_ROUNDS)}
    assert set(theirs.__all__) == {words.split()[0] for words in WORK | BAR} | refused | ABSTRACT | CODE_ONLY


@pytest.mark.parametrize("together", [WORK, BAR], ids=["tqdm", "rich"])
def test_what_works_runs_to_the_last_round(together, capsys):
    fit(" ".join(f"--trainer.callbacks+={words}" for words in sorted(together)))
    assert "after round 1" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [*NOT_WITH_ROUNDS, *IN_EVERY_RUN])
def test_what_cannot_work_or_is_there_anyway_is_refused(kind):
    with pytest.raises(PflError, match=f": {kind.__name__} (does not work with rounds|is in every run)"):
        check_callbacks([kind.__new__(kind)])


def test_a_callback_that_cannot_work_is_refused_with_a_line(refused):
    _, line = refused("fit", "--trainer.callbacks+=ModelCheckpoint")
    assert line.startswith("trainer.callbacks: ModelCheckpoint does not work with rounds: ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (f"{STOP}=x", "trainer.callbacks.monitor: x is not logged; allowed: val/global/accuracy/p5, "),
        (f"{STOP}=val/stored/accuracy/mean", "trainer.callbacks.monitor: val/stored/accuracy/mean is not logged; all"),
        (f"{STOP}=test/global/accuracy/mean", "trainer.callbacks.monitor: test/global/accuracy/mean would select on"),
        (
            f"{STOP}=val/global/accuracy/mean --data.val_fraction=0",
            "trainer.callbacks.monitor: val/global/accuracy/mean needs validation samples; set da",
        ),
        ("LearningRateMonitor --trainer.logger=false", ""),  # in Lightning's words
        ("Timer --trainer.callbacks.duration=5", "Timer: `Timer(duration='5')` is not a valid duration. Expected a"),
        ("ThroughputMonitor", "trainer.callbacks.batch_size_fn: a value is missing"),
        (
            "RichProgressBar --trainer.callbacks+=TQDMProgressBar",
            "trainer: You added multiple progress bar callbacks to the Trainer, but currently only one progress bar",
        ),
        (
            f"TQDMProgressBar {NO_BAR}",
            "trainer: Trainer was configured with `enable_progress_bar=False` but found `TQDMProgressBar` in callbacks",
        ),
    ],
)
def test_a_wrong_callback_gets_one_clear_line(words, line, refused):
    assert refused("fit", *TINY, *f"--trainer.callbacks+={words}".split())[1].startswith(line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--ckpt_path=", "ckpt_path: no such file: ''; allowed: a run folder, a ch"),
        (
            "--config=seed.yaml",
            "data.seed: 7 is not possible in 'seed.yaml': the data's seed follows seed_everything; ",
        ),
    ],
)
def test_what_would_be_lost_in_silence_is_refused(words, line, refused):
    Path("seed.yaml").write_text("data: {class_path: Digits, init_args: {seed: 7}}\n")
    assert refused("fit", words)[1].startswith(line)


def test_the_seed_of_the_run_may_stand_at_the_data_too(capsys):
    Path("seed.yaml").write_text("seed_everything: 7\ndata: {class_path: Digits, init_args: {seed: 7}}\n")
    fit("--config=seed.yaml --trainer.fast_dev_run=true")
    assert "after round 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind",
    ["numpy.float64", "numpy.ndarray", "pathlib.PosixPath", "collections.UserDict", "builtins.function"],
)
def test_what_no_checkpoint_gives_back_is_refused_before_the_first_round(kind, capsys):
    Path("mine.py").write_text(KEEPS)
    with pytest.raises(SystemExit):
        fit(f"--trainer.callbacks+=mine.Keeps --trainer.callbacks.what={kind} {NO_BAR}")
    allowed = "a plain number, a text, a tensor, or a list or mapping of them"
    line = f"pfl: error: checkpoint: callbacks.Keeps.seen.0.best must be {allowed}, got {kind}\n"
    assert capsys.readouterr().err == line
    assert not list(Path().rglob("*.ckpt"))


@pytest.mark.filterwarnings("default:.*is never called")
def test_a_hook_that_is_never_called_gets_a_warning(capsys):
    Path("mine.py").write_text(MINE)
    fit(f"--trainer.callbacks+=mine.Idle {NO_BAR}")
    warning = "pfl: warning: Idle.on_after_backward is never called: clients train inside a round"
    assert warning in capsys.readouterr().err.splitlines()
