"""Reads the files of a run folder; an error names the file."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.settings import named_callbacks

if TYPE_CHECKING:
    import pandas as pd

LABEL = "label.yaml"
WORDS, WHOLE_NUMBERS = ("split", "model"), ("round", "client", "samples", "correct")  # other columns are numbers


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


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a run from its ``config.yaml``.

    Raises:
        PflError: If they are not those of a run.
    """
    try:
        config = yaml.safe_load(path.read_text())
        assert isinstance(config["seed_everything"], int)
        assert isinstance(config["trainer"]["max_steps"], int)
        assert all(isinstance(config[part]["class_path"], str) for part in ("model", "data"))
        named_callbacks(config["trainer"].get("callbacks"))
    except OSError as error:
        raise unreadable(path, error) from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise PflError(f"runs: '{path}' was not written by pfl fit; allowed: run folders of pfl fit") from error
    settings: dict[str, Any] = config
    return settings


def read_label(path: Path) -> Label:
    """Read how a run is named from its ``label.yaml``.

    Raises:
        PflError: If it is not there, or is another file.
    """
    try:
        return Label(**yaml.safe_load(path.read_text()))
    except OSError as error:
        raise unreadable(path, error) from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise PflError(f"runs: '{path}' was not written by pfl fit; allowed: run folders of pfl fit") from error


def read_table(path: Path, columns: Sequence[str]) -> "pd.DataFrame":
    """Read a table of a run. What follows its last complete line is left out: the run may be writing it.

    Args:
        path: The CSV file.
        columns: Columns that it must have.

    Raises:
        PflError: If the file cannot be read, or lacks a column, or a cell is not what its column holds.
    """
    import pandas as pd  # which takes half a second

    kinds = dict.fromkeys(WORDS, "str") | dict.fromkeys(WHOLE_NUMBERS, "int")
    try:
        text = path.read_text(encoding="utf-8")
        whole = io.StringIO(text[: text.rfind("\n") + 1])
        cells = pd.read_csv(whole, dtype=object, index_col=False)
        table = cells.astype({name: kinds.get(name, "float") for name in cells})  # Python's floats, to the last digit
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise PflError(f"runs: '{path}': {one_line(error)}; allowed: tables as pfl fit writes them") from error
    if missing := [name for name in columns if name not in table]:
        raise PflError(f"runs: '{path}' has no column {missing[0]}; allowed: run folders of pfl fit")
    return table


def unreadable(path: Path, error: OSError) -> PflError:
    """The error for a file that cannot be read."""
    return PflError(f"runs: cannot read '{path}' ({error.strerror})")
