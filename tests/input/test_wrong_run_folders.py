"""Run folders in which something is wrong get one clear line, and keep what is in them."""

import errno
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

from pfl_lightning.callbacks import RunSummary
from pfl_lightning.cli import main

TINY = ["--model.network=MLP", "--model.network.hidden=[4]", "--model.eval_epochs=0", "--data.num_clients=4"]
ROUNDS = ["--trainer.enable_progress_bar=false", "--trainer.val_check_interval=2"]
MLFLOW = "--trainer.logger=MLFlowLogger"
FIT = ["fit", *TINY, *ROUNDS, "--trainer.max_steps=4"]
RUN = Path("runs/FedAvg-Digits/version_0")


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLACE", str(tmp_path / "place"))
    monkeypatch.delenv("NOWHERE", raising=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of two rounds, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    main(["fit", *TINY, *ROUNDS, "--trainer.max_steps=2", f"--trainer.default_root_dir={folder}"])
    return folder


@pytest.fixture
def run(finished) -> Path:
    """That run, in the working folder."""
    shutil.copytree(finished, "runs")
    return RUN


def fit(*options: str) -> None:
    main([*FIT, *options])


@pytest.fixture
def refusal(refused):
    """The line about a run with some options."""

    def of(*options: str) -> str:
        code, line = refused(*FIT, *options)
        assert code in (1, os.EX_TEMPFAIL)
        return line

    return of


# where the runs are


def a_file(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("mine")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file", "'file/FedAvg-Digits/version_0' cannot be made: "),
        ("link", "'link/FedAvg-Digits/version_0' cannot be made: "),
        ("~no-such-user/runs", "~no-such-user in ~no-such-user/runs is not known here"),
        ("a/${NOWHERE}", "${NOWHERE} in a/${NOWHERE} is not known here"),
    ],
)
def test_a_place_where_no_run_can_be(place, words, refusal):
    a_file("file")
    os.symlink("nothing", "link")
    line = refusal(f"--trainer.default_root_dir={place}")
    assert line.startswith("trainer.default_root_dir: ")
    assert words in line


def deny(*args, **kwargs):
    raise PermissionError(13, "Permission denied")


def test_a_place_that_cannot_be_written(monkeypatch, refusal):
    monkeypatch.setattr(Path, "mkdir", deny)
    line = refusal()
    assert "trainer.default_root_dir: 'runs/FedAvg-Digits/version_0' cannot be made: Permission denied" in line


@pytest.mark.parametrize(("place", "folder"), [("~/runs", "home/runs"), ("${PLACE}/a", "place/a")])
def test_a_place_is_the_same_for_all_parts(place, folder):
    for options in (["--trainer.max_steps=1"], ["--ckpt_path=last", "--trainer.max_steps=2"]):
        fit(f"--trainer.default_root_dir={place}", *options)
    run = Path(folder) / "FedAvg-Digits/version_0"
    files = {"checkpoints", "clients.csv", "config.yaml", "label.yaml", "metrics.csv", "hparams.yaml"}
    names = {path.name for path in run.iterdir()} - {".lock"}
    assert {name for name in names if not name.startswith("events.")} == files < names
    assert "\n2," in (run / "metrics.csv").read_text()
    assert {path.parts[0] for path in Path().iterdir()} == {Path(folder).parts[0]}
    main(["test", *TINY, f"--trainer.default_root_dir={place}", "--ckpt_path=last"])


# what is in them


def damaged(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = b"\xff\xfe\0" + lines[line - 1]
    path.write_bytes(b"".join(lines))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: shutil.rmtree(run / "checkpoints"), "ckpt_path: last, but no run in 'runs/FedAvg-Digits' has"),
        (lambda run: (shutil.rmtree(run), run.write_text("")), "ckpt_path: last, but no run in 'runs/FedAvg-Digits'"),
        (lambda run: (run / "metrics.csv").write_bytes(bytes(range(256))), "metrics.csv': line 1 is damaged"),
        (lambda run: damaged(run / "clients.csv", 9), "clients.csv': line 9 is damaged; restore the table of this"),
        (lambda run: a_folder(run / "clients.csv"), "clients.csv"),
    ],
)
def test_a_run_that_cannot_continue(spoil, words, run, refusal):
    spoil(run)
    assert words in refusal("--ckpt_path=last")


@pytest.mark.filterwarnings("default:.*had round 2 when the checkpoint was saved")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: (run / "metrics.csv").unlink(), ["metrics.csv' is empty, but had round 2"]),
        (lambda run: os.truncate(run / "metrics.csv", 2000), ["metrics.csv' ends with round", "had round 2"]),
        (lambda run: damaged(run / "metrics.csv", 4), ["metrics.csv' ends with round 1, but had round 2"]),
        (lambda run: (run / "config.yaml").write_text("{["), []),
        (lambda run: run.with_name("version_1").write_text("a file"), []),
        (lambda run: (run / ".lock").write_text("4711"), []),
    ],
)
def test_a_run_that_continues_with_a_word_about_its_tables(spoil, words, run, capsys):
    spoil(run)
    capsys.readouterr()
    fit("--ckpt_path=last")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(words)
    assert all(line.startswith("pfl: warning: ") and word in line for line in lines for word in words)
    assert (run / "metrics.csv").read_text().splitlines()[-1].startswith("4,")
    assert "max_steps: 4" in (run / "config.yaml").read_text()


def test_a_run_that_another_process_continues(run, refusal):
    with FileLock(run / ".lock"):
        (run / ".lock").write_text("4711")
        line = refusal("--ckpt_path=last")
        assert "'runs/FedAvg-Digits/version_0' is in use by process 4711; allowed: one process at a time" in line
        main(["test", *TINY, "--ckpt_path=last"])
    fit("--ckpt_path=last")


def test_a_run_folder_that_cannot_be_written(run, monkeypatch, refusal):
    monkeypatch.setattr(FileLock, "acquire", deny)
    assert "'runs/FedAvg-Digits/version_0' cannot be written: Permission denied" in refusal("--ckpt_path=last")


# what cannot be trained


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(
            [MLFLOW, "--trainer.logger.tracking_uri=no://where"],
            "MLFlowLogger cannot be made: ",
            marks=pytest.mark.skipif(not find_spec("mlflow"), reason="needs the extra mlflow"),
        ),
        (["--trainer.callbacks=CosineMaps"], "CosineMaps needs clients that keep heads"),
        (["--checkpoint.monitor=val/nothing"], "checkpoint.monitor: val/nothing is not logged"),
    ],
)
def test_a_run_that_never_trains_leaves_nothing(options, words, refusal):
    assert words in refusal(*options)


def test_a_run_that_does_not_continue_is_left_as_it_was(run, refusal):
    assert "nonsense" in refusal("--trainer.accelerator=nonsense", "--ckpt_path=last")


@pytest.mark.parametrize("moment", ["on_train_batch_start", "on_validation_start"])
@pytest.mark.parametrize("options", [[], ["--trainer.logger=false"]])
def test_a_run_whose_folder_is_removed_ends(moment, options, monkeypatch, refusal):
    def remove(_, trainer, *__):
        if trainer.global_step >= 2:
            shutil.rmtree(RUN)

    monkeypatch.setattr(RunSummary, moment, remove, raising=False)
    assert refusal(*options) == f"'{RUN}' was removed while this run wrote to it; start the run again"


def test_a_full_disk_ends_a_run_with_a_line_that_names_its_folder(monkeypatch, refusal):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")  # as TensorBoard does, without a file

    monkeypatch.setattr(RunSummary, "on_validation_start", fail, raising=False)
    assert refusal().startswith(f"'{RUN}' cannot be written (No space left on device); make room and repeat")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_end_before_the_first_checkpoint_leaves_what_others_made(error, monkeypatch):
    def end(*_):
        a_file("place/other/mine")
        raise error

    monkeypatch.setattr(RunSummary, "on_validation_start", end, raising=False)
    with pytest.raises((SystemExit, error)):
        fit("--trainer.default_root_dir=place")
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["place", "place/other", "place/other/mine"]
