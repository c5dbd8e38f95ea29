"""W&B and MLflow with the real libraries and without a network: one process per run, as on a command line."""

import os
import sqlite3
from pathlib import Path

import pytest
import yaml
from fakes.forked import pfl

RUN = Path("runs/FedAvg-Digits/version_0")
TINY = ["--model.network=MLP", "--model.network.hidden=[4]", "--model.eval_epochs=0", "--data.num_clients=4"]
QUICK = ["--trainer.enable_progress_bar=false", "--trainer.val_check_interval=2"]
BOTH = ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true", "--trainer.logger+=MLFlowLogger"]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A working folder with a file of the user's, a home and a folder for temporary files."""
    for name in [name for name in os.environ if name.startswith(("WANDB", "MLFLOW", "XDG"))]:
        monkeypatch.delenv(name)
    for name in ("work", "home", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "config.yaml").write_text("trainer: {}\n")
    return tmp_path


def fit(places: Path, *words: str) -> None:
    """Train in a process that must end."""
    environment = {"HOME": str(places / "home"), "TMPDIR": str(places / "tmp")}
    code, _, err = pfl(places / "work", "fit", *TINY, *QUICK, *BOTH, *words, **environment)
    assert code == 0, err


def files_of(places: Path) -> set[Path]:
    """All files that are not the run's, but for torch's own and matplotlib's."""
    paths = {path.relative_to(places) for path in places.rglob("*") if path.is_file()}
    theirs = ("tmp/torchinductor", "home/.cache/matplotlib", "home/.config/matplotlib", "tmp/matplotlib")
    return {path for path in paths if not str(path).startswith(theirs) and not path.is_relative_to("work" / RUN)}


def points(run: Path) -> list[tuple[str, int, float]]:
    """What MLflow has of a run: names, rounds and values, in their order."""
    with sqlite3.connect(run / "mlflow/mlflow.db") as store:
        rows = store.execute("select key, step, value from metrics order by key, step").fetchall()
    store.close()
    return rows


@pytest.mark.slow
def test_a_run_with_wandb_and_mlflow_stays_in_its_folder_and_continues_there(places):
    run = places / "work" / RUN
    before = files_of(places)
    fit(places, "--trainer.max_steps=3")
    first = yaml.safe_load((run / "loggers.yaml").read_text())
    fit(places, "--trainer.max_steps=4", "--ckpt_path=last")
    assert yaml.safe_load((run / "loggers.yaml").read_text()) == first
    outside = {path for path in files_of(places) if Path(".cache", "wandb").parts != path.parts[1:3]}
    assert outside == before, "nothing outside of the run's folder but the cache of W&B"

    assert len(list((run / "wandb").glob(f"offline-run-*-{first['WandbLogger']}/*.wandb"))) == 2
    pictures = [path.name.rpartition("_")[0] for path in run.glob("wandb/offline-run-*/files/media/images/*/*.png")]
    assert any(name.startswith("partition") for name in pictures)

    names = {name for name, _, _ in points(run)}
    assert {"train/loss", "test/global/accuracy/mean", "time/total"} <= names
    assert [step for name, step, _ in points(run) if name == "train/loss"] == [1, 2, 3, 4]
    assert [step for name, step, _ in points(run) if name == "val/global/accuracy/mean"] == [0, 2, 3, 4]
    with sqlite3.connect(run / "mlflow/mlflow.db") as store:
        settings = dict(store.execute("select key, value from params").fetchall())
        runs = store.execute("select run_uuid, status from runs").fetchall()
    store.close()
    assert settings["model.network.hidden"] == "[4]"
    assert settings["trainer.max_steps"] == "3", "MLflow keeps what the run began with"
    assert runs == [(first["MLFlowLogger"], "FINISHED")]
    drawn = run / "mlflow/artifacts" / first["MLFlowLogger"] / "artifacts/test/global/error_by_samples"
    assert {path.name for path in drawn.iterdir()} == {"000000.png", "000003.png", "000004.png"}


@pytest.mark.slow
@pytest.mark.parametrize(("logger", "extra"), [("WandbLogger", "wandb"), ("MLFlowLogger", "mlflow")])
def test_a_missing_library_gets_a_line_with_its_extra(logger, extra, tmp_path, monkeypatch, capsys):
    from lightning.pytorch.loggers import mlflow, wandb

    from pfl_lightning.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wandb, "_WANDB_AVAILABLE", False)
    monkeypatch.setattr(mlflow, "_MLFLOW_AVAILABLE", False)
    with pytest.raises(SystemExit):
        main(["fit", *TINY, *QUICK, f"--trainer.logger={logger}"])
    line = f'pfl: error: trainer.logger: {logger} needs {extra}: uv pip install "pfl_lightning[{extra}]"\n'
    assert capsys.readouterr().err == line
    assert not Path("runs").exists()
