from pathlib import Path
from typing import Any

import numpy as np

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.labelled import whole_numbers
from pfl_lightning.data.own.image_folders import read_pictures
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import find_folder, reading
from pfl_lightning.tasks import check_values

FOLDER = "flowers-102"
SOURCE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
SPLITS = ("trnid", "tstid", "valid")
CLASSES = 102


class Flowers102(OfficialData):
    """Oxford Flowers 102: colour pictures of flowers, of 102 kinds.

    The files are ``flowers-102/jpg/image_00001.jpg`` and so on, ``imagelabels.mat`` and ``setid.mat``. An input is
    ``[3, size, size]``. The classes are the files' labels, 1 to 102, counted from 0.

    The official splits are the splits: 1,020 pictures for training, 1,020 for validation and 6,149 for testing. The
    pictures are decoded once and then kept in ``.pfl_cache``.

    Paper: Nilsback and Zisserman, "Automated Flower Classification over a Large Number of Classes", ICVGIP 2008; used
    by PFLlib, arXiv:2312.04992.

    Differs: PFLlib pools all pictures, a quarter of each client's for testing, as ``test_fraction: 0.25`` does.

    Args:
        root: The folder with ``flowers-102``, or that folder itself.
        size: Pixels of a side that pictures are resized to.
        kwargs: See ``OfficialData``.
    """

    def __init__(self, root: str = "data", size: PositiveInt = 64, **kwargs: Any) -> None:
        super().__init__(root=root, **kwargs)
        self.size = size

    def read(self) -> list[RawData]:
        """Decode the pictures, or read the pixels if they were decoded before.

        Raises:
            PflError: If a file is missing or cannot be read, or a picture has no label.
        """
        remedy = f"download imagelabels.mat, setid.mat and 102flowers.tgz from {SOURCE} and unpack them there"
        folder = find_folder(self.root, FOLDER, "setid.mat", remedy)
        labels = _numbers(folder / "imagelabels.mat", "labels", remedy, CLASSES)
        ids = [_numbers(folder / "setid.mat", name, remedy, len(labels)) for name in SPLITS]
        with reading(folder / "setid.mat", remedy):
            if twice := sum(map(len, ids)) - len(np.unique(np.concatenate(ids))):
                raise ValueError(f"each picture must be in one split, got {twice:,} more than once")
        splits = [[folder / "jpg" / f"image_{number:05}.jpg" for number in split] for split in ids]
        images = read_pictures(splits, Path(self.root), f"flowers102-{self.size}", version=1, size=self.size)
        names = [*map(str, range(1, CLASSES + 1))]
        notes = {"splits": "trnid; valid for validation; tstid for testing"}
        return [
            RawData(pixels, labels[split - 1] - 1, None, names, "NCHW", notes)
            for pixels, split in zip(images, ids, strict=True)
        ]


def _numbers(path: Path, name: str, remedy: str, most: int) -> Any:
    """An array of a file of MATLAB, whole numbers from 1 on, ``[numbers]``."""
    from scipy.io import loadmat  # which takes a tenth of a second

    with reading(path, remedy):
        numbers = whole_numbers(loadmat(path, appendmat=False, variable_names=[name])[name].flatten())
        check_values(numbers, (numbers >= 1) & (numbers <= most), name, f"whole numbers from 1 to {most}")
        return numbers.numpy()
