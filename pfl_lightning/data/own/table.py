import csv
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import FromPython, RawData, shown
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError, nearest
from pfl_lightning.paths import expand_home

if TYPE_CHECKING:  # it takes half a second to import
    from pandas import DataFrame, Series

REMEDY = "write it with DataFrame.to_csv(file, index=False)"
MOST_VALUES = 1000  # of a column of text that is made one-hot
SEPARATORS = ",;\t|"
MOSTLY, ALMOST_ALL = 0.5, 0.95  # shares of the lines
MOST_CODES = 20  # numbers that are codes beside others that are letters
FEWEST_LINES = 20  # of a column that can be ids
SIGNS = r"[\s%,$€£]"
UNITS = rf"{SIGNS}|(?<=[\d\s])[^\W\d_]{{1,5}}$"  # and a word after a number
DATE = r"\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}"


class Table(OwnData):
    """A table of features in a CSV file with a line of names, one sample a line, separated by , ; tab or |.

    Columns of numbers are standardised, columns of text become one column for each value that they have, 1 where the
    sample has it. Text that is mostly numbers, dates or ids is refused. With a ``tokenizer``, the only feature is a
    column of texts, or two columns are pairs of texts. A target with a decimal point is a regression, all others are
    classes, see ``target_type``. Several targets are labels, 1, 0, or -1 for unknown, or all have decimal points.

    Args:
        file: The file; or from Python a ``DataFrame`` of pandas.
        target: Name of the column with the targets, or names of two or more.
        client: Name of the column that tells which client has a sample. Default: unknown.
        features: Names of the columns that are inputs. Default: all others; none if the target is a text whose tokens
            are learned (``target_type``), of which one can be the prompt.
        test_file: File of the samples for testing, with the same columns. Default: a share of each client's samples is
            for testing (``test_fraction``).
        kwargs: See ``OwnData``.

    Raises:
        PflError: If the target or the client is among the features.
    """

    files_option = "file"

    def __init__(
        self,
        file: str | FromPython,
        target: str | list[str],
        client: str | None = None,
        features: Sequence[str] | None = None,
        test_file: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.targets = [target] if isinstance(target, str) else target
        if labels := {*self.targets, client} & {*(features or ())}:
            raise PflError(f"data.features must be other columns than target and client, got {labels.pop()}")
        self.frame, self.file = frame_or_file(file)
        self.target = target
        self.client = client
        self.features = features
        self.test_file = None if test_file is None else str(expand_home(test_file, "data.test_file"))

    def read(self) -> Sequence[RawData]:
        """Read the file, and that for testing if there is one.

        Raises:
            PflError: If one cannot be read, a column is not there or says nothing of its meaning, or lacks a value.
        """
        frames = [self._table("file", self.file, self.frame)]
        if self.test_file is not None:
            frames.append(self._table("test_file", self.test_file))
        labels = [*self.targets, *([] if self.client is None else [self.client])]
        features = self.features
        if features is None:
            features = [name for name in frames[0].columns if name not in labels and not self.learns_tokens]
        for frame, file in zip(frames, (self.file, self.test_file), strict=False):
            check_names(frame, [*features, *labels], str(file))
        with reading(Path(self.file), REMEDY, key="data.file"):
            inputs, notes = self._inputs_of([frame[[*features]] for frame in frames])
        several = len(self.targets) > 1
        return [
            RawData(
                rows,
                frame[self.targets if several else self.targets[0]].to_numpy(),
                None if self.client is None else frame[self.client].to_numpy(),
                self.targets if several else (),
                None if self.tokenizer is not None else "NF",
                notes,
            )
            for rows, frame in zip(inputs, frames, strict=True)
        ]

    def _table(self, option: str, file: str, frame: Any = None) -> "DataFrame":
        """All columns of a file, or of what is in its place from Python."""
        with reading(Path(file), REMEDY, key=f"data.{option}"):
            return read_frame(frame, file, self.client)

    def _inputs_of(self, frames: Sequence["DataFrame"]) -> tuple[list[Any], dict[str, str]]:
        """Texts, or numbers of each frame with the same columns, and what columns were taken for."""
        import pandas as pd

        names = [*frames[0]]
        if self.learns_tokens:
            if len(names) > 1:
                raise ValueError(f"data.features must be one prompt with data.target_type: tokens, got {len(names)}")
            return [frame[names[0]].to_numpy() if names else None for frame in frames], {}
        if self.tokenizer is not None:
            if len(names) not in (1, 2):
                raise ValueError(f"data.features must be one text or two with data.tokenizer, got {len(names)}")
            return [frame[names[0] if len(names) == 1 else names].to_numpy() for frame in frames], {}
        self._used = names
        table = pd.concat(frames)
        understood = _check_columns(table)
        encoded = _encode(table)
        self._columns = [*encoded]
        ends = np.cumsum([*map(len, frames)])[:-1]
        return np.split(encoded.to_numpy(np.float64), ends), {"columns": understood}

    def network_inputs(self, raw: Any) -> Tensor:
        """See ``OwnData``; a ``DataFrame`` with the columns of the file that are inputs, and any others."""
        if self.tokenizer is not None:
            return super().network_inputs(raw)
        encoded = _encode(raw[self._used])
        if unknown := {*encoded} - {*self._columns}:
            raise ValueError(f"inputs must have values that were there in training, got {min(unknown)}")
        return super().network_inputs(encoded.reindex(columns=self._columns, fill_value=0).to_numpy(np.float64))


def frame_or_file(given: Any) -> tuple[Any, str]:
    """A ``DataFrame`` from Python and what errors call it, or None and the path of a file."""
    if isinstance(given, str | Path):
        return None, str(expand_home(given, "data.file"))
    return given, type(given).__name__


def read_frame(frame: Any, file: str, client: str | None = None) -> "DataFrame":
    """All columns of a ``DataFrame`` from Python, or of a CSV file.

    Args:
        frame: The ``DataFrame``; None for the file.
        file: The file.
        client: The column of clients, which are kept as they are written, such as 007 or NA.

    Raises:
        PflError: If it has no names of columns, or two of one name.
        OSError: If it cannot be read.
    """
    import pandas as pd

    if frame is not None:
        return frame.rename(columns=str)
    with open(file, newline="", encoding="utf-8-sig") as lines:
        separator = next((mark for mark in SEPARATORS if mark in lines.readline()), ",")
        lines.seek(0)
        names = next(csv.reader(lines, delimiter=separator), [])
    if names and all(is_number(name) for name in names):
        raise PflError(f"data.file: the first line of '{file}' must have names of columns, got {shown(names)}")
    if twice := {name for name in names if names.count(name) > 1}:
        raise PflError(f"data.file: two columns of '{file}' have the name '{min(twice)}'; rename one")
    # in parts, a column could be numbers here and text there
    table = pd.read_csv(file, sep=separator, low_memory=False)
    if client in names:
        options = {"sep": separator, "usecols": [client], "dtype": str, "keep_default_na": False}
        written = pd.read_csv(file, **options)[client]
        table[client] = written.mask(written == "")
    return table


def check_names(table: "DataFrame", names: Sequence[str], file: str) -> None:
    """Check columns.

    Args:
        table: All columns.
        names: Those that are used.
        file: Where the table is from, for errors.

    Raises:
        PflError: If one is not there, is an index that to_csv has written, or lacks a value.
    """
    key = f"data.file: '{file}' has"
    for name in names:
        if name not in table.columns:
            there = [*map(str, table.columns)]
            raise PflError(f"{key} no column '{name}'{nearest(str(name), there)}; allowed: {shown(there)}")
        if str(name).startswith("Unnamed: "):
            raise PflError(f"{key} a column without a name, '{name}', perhaps the index; give each a name")
        if (missing := table[name].isna()).any():
            lines = f"line {missing.argmax() + 2}" + f" and {missing.sum() - 1:,} others" * bool(missing.sum() > 1)
            raise PflError(f"{key} no value of column '{name}' in {lines}; fill it, or drop the line or the column")


def is_number_column(column: "Series") -> bool:
    """Whether a column has numbers alone."""
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column))


def _texts(table: "DataFrame") -> list[str]:
    """The columns that are no numbers."""
    return [name for name in table if not is_number_column(table[name])]


def _encode(table: "DataFrame") -> "DataFrame":
    """Columns of numbers; text becomes a column per value."""
    import pandas as pd

    return pd.get_dummies(table, columns=_texts(table))


def _check_columns(table: "DataFrame") -> str:
    """What columns were taken for; some text is refused, and numbers that can be ids are warned of."""
    texts = _texts(table)
    for name in texts:
        _check_text(table[name])
    counts = table.nunique()
    parts = []
    if numbers := len(table.columns) - len(texts):
        parts.append(f"{numbers} of numbers")
    parts += [f"'{name}' one for each of {counts[name]} values" for name in texts]
    if constant := [str(name) for name in table if counts[name] == 1]:
        parts.append(f"with a single value: {shown(constant)}")
    wholes = [name for name in table if name not in texts and table[name].dtype.kind != "f"]
    if ids := [name for name in wholes if counts[name] == len(table) >= FEWEST_LINES]:
        warnings.warn(
            f"data.features: '{ids[0]}' has another whole number in every line, and is an input; leave it out "
            "if it is the number of a line",
            stacklevel=2,
        )
    return ", ".join(parts)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_text(column: "Series") -> None:
    """Refuse a column of text that is numbers but for some values, or dates, or ids.

    Raises:
        PflError: If it is; it names the column, a value and its line.
    """
    import pandas as pd

    key = f"data.features: column '{column.name}'"
    text = column.astype(str)
    are_numbers = pd.to_numeric(text, errors="coerce").notna()
    if are_numbers.mean() >= MOSTLY and text[are_numbers].nunique() > MOST_CODES:
        place = int((~are_numbers).argmax())
        count = f"{int((~are_numbers).sum()):,} of {len(text):,} values are no numbers"
        raise PflError(f"{key} has '{text.iloc[place]}' in line {place + 2} among numbers ({count})")
    remedy = "make numbers of it, or leave it out by data.features"
    for units, most_codes in ((SIGNS, 0), (UNITS, MOST_CODES)):
        numbers = pd.to_numeric(text.str.replace(units, "", regex=True), errors="coerce")[~are_numbers]
        if numbers.count() >= MOSTLY * len(text) and numbers.nunique() > most_codes:
            raise PflError(f"{key} has numbers as text, such as '{text.iloc[0]}'; {remedy}")
    if text.str.match(DATE).mean() >= MOSTLY:
        raise PflError(f"{key} has dates, such as '{text.iloc[0]}'; {remedy}")
    values = text.nunique()
    if (len(text) >= FEWEST_LINES and values >= ALMOST_ALL * len(text)) or values > MOST_VALUES:
        raise PflError(f"{key} of text has {values:,} values in {len(text):,} lines; {remedy}")
