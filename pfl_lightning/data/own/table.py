from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_lightning.data.own.base import OwnData
from pfl_lightning.data.own.raw import RawData
from pfl_lightning.data.reading import reading

if TYPE_CHECKING:  # it takes half a second to import
    from pandas import DataFrame

MOST_VALUES = 1000  # of a column of text that is made one-hot


class Table(OwnData):
    """A table of features in a CSV file with a line of names, one sample a line.

    Columns of numbers are standardised, columns of text become one column for each value that they have, 1 where the
    sample has it. A target with a decimal point is a regression, all others are classes.

    Args:
        file: The file.
        target: Name of the column with the targets.
        client: Name of the column that tells which client has a sample. Default: unknown.
        features: Names of the columns that are inputs. Default: all others.
        kwargs: See ``OwnData``.
    """

    files_option = "file"

    def __init__(
        self, file: str, target: str, client: str | None = None, features: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.file, self.target, self.client, self.features = str(Path(file).expanduser()), target, client, features

    def read(self) -> tuple[RawData, None]:
        """Read the file.

        Raises:
            PflError: If it cannot be read, a column is not there, or a value is missing.
        """
        import pandas as pd

        path = Path(self.file)
        with reading(path, "write it with DataFrame.to_csv(file, index=False)", key="data.file"):
            table = pd.read_csv(path)
            _check_names(table, {"target": [self.target], "client": [self.client], "features": self.features})
            own = [name for name in table.columns if name not in (self.target, self.client)]
            features = table[own if self.features is None else list(self.features)]
            labels = table[[name for name in (self.target, self.client) if name is not None]]
            _check_values(features.join(labels))
            clients = None if self.client is None else table[self.client].to_numpy()
            return RawData(_numbers(features), table[self.target].to_numpy(), clients), None


def _check_names(table: "DataFrame", asked: dict[str, Sequence[str | None] | None]) -> None:
    """Check the names of columns, by the option that asks for them."""
    for option, names in asked.items():
        for name in names or ():
            if name is not None and name not in table.columns:
                known = ", ".join(map(str, table.columns))
                raise ValueError(f"data.{option}: no column '{name}'; allowed: {known}")
    unnamed = [name for name in table.columns if str(name).startswith("Unnamed: ")]
    if unnamed and asked["features"] is None:
        raise ValueError(f"a column without a name, '{unnamed[0]}', perhaps the index; allowed: a name for each")


def _check_values(table: "DataFrame") -> None:
    """Refuse missing values, and text that is no category."""
    missing = table.isna().to_numpy()
    if missing.any():
        row, column = np.argwhere(missing)[0]
        raise ValueError(f"column '{table.columns[column]}' has no value in line {row + 2}; allowed: a value in all")


def _numbers(features: "DataFrame") -> Any:
    """Features as floats ``[samples, features]``: columns of numbers, then one-hot columns of those of text."""
    import pandas as pd

    texts = [name for name in features.columns if not pd.api.types.is_numeric_dtype(features[name])]
    for name in texts:
        if (count := features[name].nunique()) > MOST_VALUES:
            raise ValueError(f"column '{name}' of text has {count:,} values; allowed: up to {MOST_VALUES:,}")
    numbers = features.drop(columns=texts)
    return pd.concat([numbers, pd.get_dummies(features[texts])], axis=1).to_numpy(np.float64)
