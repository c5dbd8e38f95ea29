from pathlib import Path

import numpy as np

from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.labelled import whole_numbers
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import find_folder, reading
from pfl_lightning.tasks import check_values

SOURCE = "http://ufldl.stanford.edu/housenumbers/"


class SVHN(OfficialData):
    """SVHN: digits of house numbers, cropped from street views, in colour, of 32 x 32 pixels.

    The files are ``train_32x32.mat`` (73,257 samples for training) and ``test_32x32.mat`` (26,032 for testing). An
    input is ``[3, 32, 32]``. The classes are the digits: the files' label 10 is the digit 0. The 531,131 further
    samples of ``extra_32x32.mat`` are not used.

    Paper: Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", NIPS Workshop on Deep
    Learning and Unsupervised Feature Learning 2011; used by NIID-Bench, arXiv:2102.02079.
    """

    def read(self) -> tuple[RawData, RawData]:
        """Read both files.

        Raises:
            PflError: If one is missing or cannot be read, or holds something else.
        """
        names = [f"{split}_32x32.mat" for split in ("train", "test")]
        train, test = (_read(find_folder(self.root, "SVHN", name, f"download {SOURCE}{name}") / name) for name in names)
        return train, test


def _read(path: Path) -> RawData:
    """The samples of a file, which has them along the last axis."""
    from scipy.io import loadmat  # which takes a tenth of a second

    with reading(path, f"download {SOURCE}{path.name} again"):
        content = loadmat(path, appendmat=False, variable_names=["X", "y"])
        pixels = content["X"]
        labels = whole_numbers(content["y"].flatten())
        if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
            wanted = f"uint8 [32, 32, 3, {len(labels)}], one for each label"
            raise ValueError(f"X must be {wanted}, got {pixels.dtype} {list(pixels.shape)}")
        check_values(labels, (labels >= 1) & (labels <= 10), "labels", "whole numbers from 1 to 10")
        return RawData(pixels.transpose(3, 2, 0, 1), labels % 10, None, [*map(str, range(10))], "NCHW")
