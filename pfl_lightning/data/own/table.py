from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError
from pfl_lightning.paths import expand_home

if TYPE_CHECKING:  # it takes half a second to import
    from pandas import DataFrame

MOST_VALUES = 1000  # of a column of text that is made one-hot


class Table(OwnData):
    """A table of features in a CSV file with a line of names, one sample a line.

    Columns of numbers are standardised, columns of text become one column for each value that they have, 1 where the
    sample has it. With a ``tokenizer``, the only feature is a column of texts. A target with a decimal point is a
    regression, all others are classes. Several targets are labels, 1, 0, or -1 for unknown, or all have decimal points.

    Args:
        file: The file.
        target: Name of the column with the targets, or names of two or more.
        client: Name of the column that tells which client has a sample. Default: unknown.
        features: Names of the columns that are inputs. Default: all others.
        kwargs: See ``OwnData``.

    Raises:
        PflError: If the target or the client is among the features.
    """

    files_option = "file"

    def __init__(
        self,
        file: str,
        target: str | list[str],
        client: str | None = None,
        features: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.targets = [target] if isinstance(target, str) else target
        if labels := {*self.targets, client} & {*(features or ())}:
            raise PflError(f"data.features must be other columns than target and client, got {labels.pop()}")
        self.file = str(expand_home(file, "data.file"))
        self.target = target
        self.client = client
        self.features = features

    def read(self) -> tuple[RawData, None]:
        """Read the file.

        Raises:
            PflError: If it cannot be read, a column is not there, or a value is missing.
        """
        import pandas as pd

        path = Path(self.file)
        with reading(path, "write it with DataFrame.to_csv(file, index=False)", key="data.file"):
            table = pd.read_csv(path, low_memory=False)  # in parts, a column could be numbers here and text there
            labels = [*self.targets, *([] if self.client is None else [self.client])]
            features = self.features
            if features is None:
                features = [name for name in table.columns if name not in labels]
            _check(table, [*features, *labels])
            clients = None if self.client is None else table[self.client].to_numpy()
            several = len(self.targets) > 1
            targets = table[self.targets if several else self.targets[0]].to_numpy()
            class_names = self.targets if several else ()
            if self.tokenizer is not None:
                if len(features) != 1:
                    raise ValueError(f"data.features must be one text with data.tokenizer, got {len(features)}")
                return RawData(table[features[0]].to_numpy(), targets, clients, class_names), None
            texts = [name for name in features if not pd.api.types.is_numeric_dtype(table[name])]
            if any(table[name].nunique() > MOST_VALUES for name in texts):
                raise ValueError(f"a column of text has more than {MOST_VALUES:,} values")
            inputs = pd.get_dummies(table[[*features]], columns=texts).to_numpy(np.float64)
            return RawData(inputs, targets, clients, class_names), None


def _check(table: "DataFrame", names: Sequence[str]) -> None:
    """Refuse columns that are not there, or an index that to_csv has written, and missing values."""
    for name in names:
        if name not in table.columns:
            raise ValueError(f"no column '{name}'; allowed: {', '.join(map(str, table.columns))}")
        if str(name).startswith("Unnamed: "):
            raise ValueError(f"a column without a name, '{name}', perhaps the index; give each a name")
        if (missing := table[name].isna()).any():
            raise ValueError(f"column '{name}' has no value in line {missing.argmax() + 2}; fill it or drop the line")
