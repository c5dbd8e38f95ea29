"""W&B and MLflow, which have runs of their own: where they write, which of their runs continues, and how they end."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger

from pfl_lightning import files

CONTINUES: dict[type[Logger], str] = {WandbLogger: "id", MLFlowLogger: "run_id"}  # the argument that continues a run
EXTRAS: dict[type[Logger], str] = {WandbLogger: "wandb", MLFlowLogger: "mlflow"}  # package, and extra of this one
IDS = "loggers.yaml"  # in the run's folder


def of_kind(kind: type, table: Mapping[type[Logger], str]) -> str | None:
    """The entry of a table for a class of loggers; None if it has none."""
    return next((entry for known, entry in table.items() if issubclass(kind, known)), None)


def usual_arguments(kind: type, folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with which a logger continues its run, and writes below a run's folder and nowhere else.

    Args:
        kind: Its class.
        folder: The run's folder.
        given: The arguments by now, which are those of the user or the defaults.
    """
    name, place = str(Path(*folder.parts[-2:])), {"save_dir": str(folder)}
    if issubclass(kind, MLFlowLogger):
        store = Path(folder if given.get("save_dir") == "./mlruns" else given["save_dir"], "mlflow").resolve()
        place = {"tracking_uri": f"sqlite:///{store}/mlflow.db", "run_name": name}
        if not given.get("tracking_uri"):  # an experiment of a store of the user's is not only of this run
            store.mkdir(parents=True, exist_ok=True)
            place["artifact_location"] = f"{store}/artifacts"
    return {**place, **continued(kind, folder)}


def continued(kind: type, folder: Path) -> dict[str, str]:
    """The argument with which a logger continues its run of this folder; none if it has none."""
    argument, file = of_kind(kind, CONTINUES), folder / IDS
    if argument is None or not file.is_file():
        return {}
    known = yaml.safe_load(file.read_text())
    return {argument: str(known[kind.__name__])} if isinstance(known, dict) and kind.__name__ in known else {}


def remember(loggers: Sequence[Logger], folder: Path) -> None:
    """Write down which runs the loggers have begun, so that a run that resumes continues them."""
    ids = {type(logger).__name__: logger.version for logger in loggers if of_kind(type(logger), CONTINUES)}
    if ids:
        files.write_text(yaml.safe_dump(ids), folder / IDS)


@contextmanager
def libraries_within(folder: Path) -> Iterator[None]:
    """Let libraries write below a run's folder what no argument redirects, and end what they have begun.

    What the user has set in the environment wins. In the end the environment is as it was.

    Args:
        folder: The run's folder.
    """
    before, others, code = dict(os.environ), _wandb_run(), 1
    os.environ.update({**_environment(folder), **before})
    try:
        yield
        code = 0
    finally:
        if _wandb_run() is not others:
            sys.modules["wandb"].teardown(exit_code=code)
        os.environ.clear()
        os.environ.update(before)


def _environment(folder: Path) -> dict[str, str]:
    place = folder.resolve() / "wandb"
    return {
        "WANDB_NAME": str(Path(*folder.parts[-2:])),
        "WANDB_CACHE_DIR": str(place / "cache"),
        "WANDB_DATA_DIR": str(place / "data"),
        "MLFLOW_DISABLE_TELEMETRY": "true",  # it writes into the home folder
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }


def _wandb_run() -> Any:
    """The run of W&B that this process has begun, if any; to import the library takes a second."""
    return getattr(sys.modules.get("wandb"), "run", None)
