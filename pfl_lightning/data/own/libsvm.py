from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import Array, RawData
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError
from pfl_lightning.paths import expand_home

if TYPE_CHECKING:  # it takes a tenth of a second to import
    from scipy.sparse import csr_matrix

MOST_BYTES = 4 << 30  # of both splits as dense arrays
REMEDY = "files of this kind are at https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"


class LibSVM(OwnData):
    """Features in a text file of LIBSVM, such as a9a or covtype: a label and ``index:value`` pairs in each line.

    Features that a line does not name are 0, and so are those that only the other file has. Indices count from 1, or
    from 0 if a line has a 0. Labels that are whole numbers, such as -1 and 1, are classes in sorted order; others are a
    regression (``target_type``). The files say nothing of clients.

    Paper: Chang and Lin, "LIBSVM: A Library for Support Vector Machines", ACM Transactions on Intelligent Systems and
    Technology 2011.

    Args:
        file: The file; .gz and .bz2 are unpacked.
        test_file: The file with the samples for testing. Default: a share of each client's samples is for testing
            (``test_fraction``).
        kwargs: See ``OwnData``.
    """

    files_option = "file"

    def __init__(self, file: str, test_file: str | None = None, **kwargs: Any) -> None:
        super().__init__(layout=None, tokenizer=None, max_length=1, **kwargs)
        self.file = str(expand_home(file, "data.file"))
        self.test_file = None if test_file is None else str(expand_home(test_file, "data.test_file"))

    def read(self) -> tuple[RawData, RawData | None]:
        """Read the files.

        Raises:
            PflError: If they cannot be read, or are too large as dense arrays.
        """
        paths = {"data.file": self.file, "data.test_file": self.test_file}
        splits = [_read(Path(path), key) for key, path in paths.items() if path is not None]
        first = min(features.indices.min(initial=1) for features, _ in splits)  # 0 or 1
        width = max(features.shape[1] for features, _ in splits)
        size = 4 * (width - first) * sum(len(labels) for _, labels in splits)
        if size > MOST_BYTES:
            raise PflError(
                f"data.file: '{self.file}' has {width - first:,} features, which would take {size / 2**30:.1f} GiB as "
                f"a dense array; at most {MOST_BYTES >> 30} GiB are possible"
            )
        raw = []
        for features, labels in splits:
            features.resize(len(labels), width)
            are_whole = (labels % 1 == 0).all()
            raw.append(
                RawData(features[:, first:].toarray(), labels.astype(np.int64) if are_whole else labels, layout="NF")
            )
        return raw[0], raw[1] if len(raw) > 1 else None


def _read(path: Path, key: str) -> "tuple[csr_matrix, Array]":
    """Features ``[samples, indices]``, with those of index 0 first, and labels ``[samples]``."""
    from sklearn.datasets import load_svmlight_file  # which takes a second

    with reading(path, REMEDY, key):
        features, labels = load_svmlight_file(str(path), dtype=np.float32, zero_based=True)
        if not len(labels):
            raise ValueError("no samples")
        return features, labels
