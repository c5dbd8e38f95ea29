"""Results as pandas tables."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_lightning.errors import PflError
from pfl_lightning.report.client_table import read_clients
from pfl_lightning.report.compare_runs import settings_of
from pfl_lightning.report.run_files import Row, read_settings, read_table, whole_number
from pfl_lightning.settings import class_name, label_of

if TYPE_CHECKING:
    import pandas as pd

SCORE = re.compile(r"(val|test|choice|train)/([^/]+)/([^/]+)/([^/]+)")  # split, evaluated model, quantity, statistic
COSTS = {
    "time/compute": "compute",
    "time/total": "time",
    "bits/total": "bits",
    "samples/total": "samples",
    "sums/calls": "calls",
}
Folders = str | Path | Iterable[str | Path]
Rows = list[dict[str, Any]]


def results(folders: Folders) -> "pd.DataFrame":
    """What runs have reached: a row for each evaluation, split, evaluated model and quantity, such as accuracy.

    Args:
        folders: One run folder, or several.

    Returns:
        The columns are ``run``, ``method``, ``data`` and ``seed``; the settings that differ between the runs, by key
        such as ``model.lr``; ``round``; simulated seconds (``compute``, and ``time`` with communication); the ``bits``
        communicated, the ``samples`` trained on and the ``calls`` of sums so far; ``split``, ``model`` and
        ``quantity``; and its ``mean``, ``std``, ``worst``, ``p10`` and other statistics, all of them over the clients.

    Raises:
        PflError: If a folder is not that of a run.
    """
    return _table(folders, _evaluations)


def clients(folders: Folders, table: str = "clients.csv") -> "pd.DataFrame":
    """What each client got: a row for each evaluation, split, evaluated model and client.

    Args:
        folders: One run folder, or several.
        table: The file: ``clients.csv`` of training, or ``test.csv``, ``validate.csv`` or ``new_clients.csv``.

    Returns:
        The columns of ``results`` up to ``round``; ``split``, ``model`` and ``client``; its ``samples``, ``correct``
        predictions and mean ``loss``, its ``accuracy``, and what other metrics say of it (``ClientMetrics``).

    Raises:
        PflError: If a folder is not that of a run, or has no such table.
    """
    return _table(folders, lambda folder: _clients(folder / table))


def _table(folders: Folders, rows_of: Any) -> "pd.DataFrame":
    import pandas as pd

    paths = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    for path in paths:
        if not (path / "config.yaml").is_file():
            raise PflError(f"folders: '{path}' is no run folder; allowed: folders such as runs/FedRep-Digits/version_0")
    settings = [read_settings(path / "config.yaml") for path in paths]
    flat = [dict(settings_of(config)) for config in settings]
    varied = _varied(flat)
    rows = [
        {**_about(path, config), **{key: each.get(key) for key in varied}, **row}
        for path, config, each in zip(paths, settings, flat, strict=True)
        for row in rows_of(path)
    ]
    return pd.DataFrame(rows)


def _about(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    names = {"method": label_of(config), "data": class_name(config["data"]["class_path"])}
    return {"run": str(path), **names, "seed": config["seed_everything"]}


def _varied(settings: Rows) -> list[str]:
    """The settings that differ; an option that only some classes have is one of them if it differs among those."""
    varied: list[str] = []
    for key in sorted({key for each in settings for key in each}):
        values = [each.get(key) for each in settings]
        if any(key.startswith(f"{outer}.") for outer in varied):
            values = [value for value in values if value is not None]
        if any(value != values[0] for value in values):
            varied.append(key)
    return [key for key in varied if key not in ("model", "data")]


def _evaluations(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of one run, from ``metrics.csv``."""
    _, logged = read_table(folder / "metrics.csv", ("round",), _scores)
    for at, scores in logged:
        for (split, model, quantity), statistics in scores.items():
            yield {**at, "split": split, "model": model, "quantity": quantity, **statistics}


def _scores(row: Row) -> tuple[dict[str, Any], dict[tuple[str, str, str], dict[str, float]]]:
    """Round and costs of a line of ``metrics.csv``, and the statistics by split, model and quantity."""
    at: dict[str, Any] = {"round": whole_number(row["round"])}
    at |= {name: float(row[tag] or "nan") for tag, name in COSTS.items() if tag in row}
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for tag, cell in row.items():
        if cell and (name := SCORE.fullmatch(tag)):
            found.setdefault((name[1], name[2], name[3]), {})[name[4]] = float(cell)
    return at, found


def _clients(path: Path) -> Iterator[dict[str, Any]]:
    for (split, model, round_index), found in read_clients(path).items():
        columns = {"client": found.ids, "samples": found.samples, "correct": found.correct, "loss": found.loss}
        columns |= {"accuracy": found.correct / found.samples, **found.others}
        for values in zip(*(column.tolist() for column in columns.values()), strict=True):
            yield {"round": round_index, "split": split, "model": model, **dict(zip(columns, values, strict=True))}
