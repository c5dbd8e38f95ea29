"""Results as pandas tables."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_lightning.errors import PflError
from pfl_lightning.report import run_files
from pfl_lightning.score_kind import ACCURACY, SPLITS, headline
from pfl_lightning.settings.values import class_name

if TYPE_CHECKING:
    import pandas as pd

# split, evaluated model, quantity, statistic
SCORE = re.compile(rf"({'|'.join(SPLITS)})/([^/]+)/([^/]+)/([^/]+)")
COSTS = {
    "time/compute": "compute",
    "time/total": "time",
    "bits/total": "bits",
    "samples/total": "samples",
    "sums/calls": "calls",
}
Folders = str | Path | Iterable[str | Path]


def results(folders: Folders) -> "pd.DataFrame":
    """What runs have reached: a row for each evaluation, split, evaluated model and quantity, such as accuracy.

    Args:
        folders: One run folder, or several.

    Returns:
        The columns are ``run``, ``method``, ``data`` and ``seed``; the settings that differ between the runs, by key
        such as ``model.local.lr``; ``round``; simulated seconds (``compute``, and ``time`` with communication); the
        ``bits`` communicated, the ``samples`` trained on and the ``calls`` of sums so far; ``split``, ``model`` and
        ``quantity``; and its ``mean``, ``std``, ``worst``, ``p10`` and other statistics, all of them over the clients.

    Raises:
        PflError: If there is no folder, or one is not that of a run.
    """
    return _table(folders, _evaluations)


def clients(folders: Folders, table: str = run_files.CLIENTS) -> "pd.DataFrame":
    """What each client got: a row for each evaluation, split, evaluated model and client.

    Args:
        folders: One run folder, or several.
        table: The file: ``clients.csv`` of training, or ``test.csv``, ``validate.csv`` or ``new_clients.csv``.

    Returns:
        The columns of ``results`` up to ``round``; ``split``, ``model`` and ``client``; its ``samples`` and mean
        ``loss``; where targets are classes, its ``correct`` predictions and ``accuracy``; and what other metrics say
        of it (``ClientMetrics``).

    Raises:
        PflError: If there is no folder, or one is not that of a run or has no such table.
    """
    return _table(folders, lambda folder: run_files.read_clients(folder / table))


def final_score(folder: Path) -> str:
    """The mean test score of the clients at a run's last evaluation, with its unit, by its first evaluated model.

    Raises:
        PflError: If the folder is not that of a run, or the run has no test results.
    """
    score_kind = run_files.read_label(folder).score or ACCURACY
    tag = headline("test", score_kind)
    scores = run_files.read_table(folder / run_files.METRICS, [tag])[tag].dropna()
    return f"{score_kind.label}: {score_kind.show(scores.iloc[-1])}" if len(scores) else ""


def _table(folders: Folders, read: Callable[[Path], "pd.DataFrame"]) -> "pd.DataFrame":
    import pandas as pd

    paths = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    if not paths:
        raise PflError("folders: got none; give one or several, such as runs/FedRep-Digits/version_0")
    seeds, settings = zip(*map(run_files.read_settings, paths), strict=True)
    varied = _varied(settings)
    about = pd.DataFrame(
        {
            "run": str(path),
            "method": run_files.read_label(path).name,
            "data": class_name(setting["data"]),
            "seed": seed,
            **{key: setting.get(key) for key in varied},
        }
        for path, seed, setting in zip(paths, seeds, settings, strict=True)
    )
    rows = pd.concat(map(read, paths), keys=range(len(paths))).droplevel(1)
    return about.join(rows, how="right").reset_index(drop=True)


def _varied(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The settings that differ; an option that only some classes have is one of them if it differs among those."""
    varied: list[str] = []
    for key in sorted({key for setting in settings for key in setting}):
        values = [setting.get(key) for setting in settings]
        if any(key.startswith(f"{outer}.") for outer in varied):
            values = [value for value in values if value is not None]
        if any(value != values[0] for value in values):
            varied.append(key)
    return [key for key in varied if key not in ("model", "data")]


def _evaluations(folder: Path) -> "pd.DataFrame":
    """The rows of one run, from ``metrics.csv``."""
    import pandas as pd

    logged = run_files.read_table(folder / run_files.METRICS, ["round"])
    scores = {tag: score.groups() for tag in logged if (score := SCORE.fullmatch(tag))}
    table = logged.set_index("round")[list(scores)]
    table.columns = pd.MultiIndex.from_tuples(scores.values(), names=["split", "model", "quantity", None])
    statistics = table.stack([0, 1, 2], future_stack=True).dropna(how="all").reset_index()
    costs = logged[["round", *(tag for tag in COSTS if tag in logged)]].rename(columns=COSTS)
    return costs.merge(statistics, on="round")
