"""The files of a run folder that reports read, and how; an error names the file."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.settings.values import named_callbacks

if TYPE_CHECKING:
    import pandas as pd

CONFIG = "config.yaml"
LABEL = "label.yaml"
METRICS = "metrics.csv"
CLIENTS = "clients.csv"
FILES = (CONFIG, LABEL, METRICS, CLIENTS)
EVALUATION = ["split", "model", "round"]  # columns of clients.csv
RESULTS = ["client", "samples", "correct", "loss"]  # further columns
TYPES = dict.fromkeys(("split", "model"), "str") | dict.fromkeys(("round", *RESULTS[:3]), "int")  # else float

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Label(NamedTuple):
    """How tables and figures name a run, as its method says.

    Attributes:
        method: Name of the method, such as ``FedAvg``.
        name: The same, or what stage doubling makes of it, such as ``FLANP``.
        doubling: Name of the class of the callback that doubles the participants, if there is any.
        suffixes: What evaluated models add to the name if several are compared; else the first one is.
        is_baseline: Whether other methods are compared with it.
    """

    method: str
    name: str
    doubling: str | None
    suffixes: Mapping[str, str]
    is_baseline: bool


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a run from its ``config.yaml``.

    Raises:
        PflError: If they are not those of a run.
    """
    with _reading(folder / CONFIG) as path:
        config: dict[str, Any] = yaml.safe_load(path.read_text())
        assert isinstance(config["seed_everything"], int)
        assert isinstance(config["trainer"]["max_steps"], int)
        assert all(isinstance(config[part]["class_path"], str) for part in ("model", "data"))
        named_callbacks(config["trainer"].get("callbacks"))
    return config


def read_label(folder: Path) -> Label:
    """Read how a run is named from its ``label.yaml``.

    Raises:
        PflError: If it is not there, or is another file.
    """
    with _reading(folder / LABEL) as path:
        return Label(**yaml.safe_load(path.read_text()))


def read_table(file: Path, columns: Sequence[str]) -> "pd.DataFrame":
    """Read a table of a run. What follows its last complete line is left out: the run may be writing it.

    Args:
        file: The CSV file.
        columns: Columns that it must have.

    Raises:
        PflError: If the file cannot be read, or lacks a column, or a cell is not what its column holds.
    """
    import pandas as pd  # which takes half a second

    with _reading(file) as path:
        text = path.read_text(encoding="utf-8")
        complete = io.StringIO(text[: text.rfind("\n") + 1])
        cells = pd.read_csv(complete, dtype=object, index_col=False)
        table = cells.astype({name: TYPES.get(name, "float") for name in cells})  # Python's floats, to the last digit
    if missing := [name for name in columns if name not in table]:
        raise PflError(f"runs: '{path}' has no column {missing[0]}; give run folders of pfl fit")
    return table


def read_metrics(folder: Path, columns: Sequence[str] = ()) -> "pd.DataFrame":
    """Read what a run has logged, by round: a column for each tag, nan where it was not logged.

    Args:
        folder: The run folder.
        columns: Tags that it must have.

    Raises:
        PflError: If the table cannot be read, lacks a tag, or has rounds out of order.
    """
    logged = read_table(folder / METRICS, ("round", *columns)).set_index("round")
    if not (logged.index.is_monotonic_increasing and logged.index.is_unique):
        raise PflError(f"runs: '{folder / METRICS}' has rounds out of order; give run folders of pfl fit")
    return logged


def read_clients(path: Path, has_accuracy: bool) -> "pd.DataFrame":
    """Read the clients' results. The last evaluation is left out if clients are missing: it may be being written.

    Args:
        path: The table.
        has_accuracy: Whether clients have an accuracy, which becomes a column; that of a regression is nan.

    Raises:
        PflError: If the table cannot be read, or other evaluations have different clients.
    """
    table = read_table(path, [*EVALUATION, *RESULTS])
    sizes = table.groupby("round").size()
    if len(sizes) and sizes.iloc[-1] < sizes.iloc[0]:
        table = table[table["round"] < sizes.index[-1]]
        sizes = sizes[:-1]
    if sizes.nunique() > 1:
        raise PflError(f"runs: '{path}' has more clients in some rounds than in others; give tables of pfl fit")
    accuracy = table["correct"] / table["samples"] if has_accuracy else nan
    table.insert(list(table).index("loss") + 1, "accuracy", accuracy)
    return table


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Name the file if it cannot be read, or is not what it is taken for."""
    try:
        yield path
    except OSError as error:
        raise PflError(f"runs: cannot read '{path}' ({error.strerror})") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        why = f" ({one_line(error)})" if isinstance(error, ValueError) else ""
        raise PflError(f"runs: '{path}' was not written by pfl fit{why}; give run folders of pfl fit") from error
