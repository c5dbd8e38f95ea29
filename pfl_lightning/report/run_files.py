"""Reads the files of a run folder; an error names the file and the line that pfl fit cannot have written."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pfl_lightning.errors import PflError
from pfl_lightning.settings import named_callbacks

Row = Mapping[str, str]
Parsed = TypeVar("Parsed")


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


def read_table(path: Path, columns: Sequence[str], parse: Callable[[Row], Parsed]) -> tuple[list[str], list[Parsed]]:
    """Read a table of a run. What follows its last complete line is left out: the run may be writing it.

    Args:
        path: The CSV file.
        columns: Columns that it must have.
        parse: Converts a row; it raises a ValueError for one that cannot be.

    Returns:
        The names of all columns, and the converted rows.

    Raises:
        PflError: If the file cannot be read, or lacks a column, or a row cannot be converted.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise PflError(f"runs: '{path}' is not a text file; allowed: run folders of pfl fit") from error
    reader = csv.reader(text[: text.rfind("\n") + 1].splitlines(), strict=True)
    try:
        names = next(reader, [])
        if missing := [name for name in columns if name not in names]:
            raise PflError(f"runs: '{path}' has no column {missing[0]}; allowed: run folders of pfl fit")
        return names, list(_rows(reader, names, parse))
    except (csv.Error, ValueError) as error:
        raise PflError(
            f"runs: '{path}' line {reader.line_num}: {error}; allowed: tables as pfl fit writes them"
        ) from error


def whole_number(text: str, least: int = 0) -> int:
    """Convert a cell.

    Raises:
        ValueError: If it is not a whole number, or too small.
    """
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"'{text}' is not a whole number from {least}")
    return int(text)


def unreadable(path: Path, error: OSError) -> PflError:
    """The error for a file that cannot be read."""
    return PflError(f"runs: cannot read '{path}' ({error.strerror})")


def _rows(reader: Iterator[list[str]], names: Sequence[str], parse: Callable[[Row], Parsed]) -> Iterator[Parsed]:
    for cells in reader:
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells below {len(names)} columns")
        yield parse(dict(zip(names, cells, strict=True)))
