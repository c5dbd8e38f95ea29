from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.data.labelled import whole_numbers
from pfl_lightning.data.own.image_folders import read_pictures
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import find_folder, reading
from pfl_lightning.tasks import check_values

FOLDER = "flowers-102"
SOURCE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
SPLITS = {"trnid": 0, "valid": 0, "tstid": 1}  # training and test
CLASSES = 102


class Flowers102(OwnData):
    """Oxford Flowers 102: colour pictures of flowers, of 102 kinds.

    The files are ``flowers-102/jpg/image_00001.jpg`` and so on, ``imagelabels.mat`` and ``setid.mat``. An input is
    ``[3, size, size]``. The classes are the files' labels, 1 to 102, counted from 0.

    The 1,020 official training and 1,020 official validation pictures are training samples, of which ``val_fraction``
    of each client's is held out. The 6,149 official test pictures are the test samples. The pictures are decoded once
    and then kept in ``.pfl_cache``.

    Paper: Nilsback and Zisserman, "Automated Flower Classification over a Large Number of Classes", ICVGIP 2008; used
    by PFLlib, arXiv:2312.04992.

    Differs: PFLlib pools all pictures, a quarter of each client's for testing, as ``test_fraction: 0.25`` does.

    Args:
        root: The folder with ``flowers-102``, or that folder itself.
        size: Pixels of a side that pictures are resized to.
        kwargs: See ``OwnData``.
    """

    def __init__(self, root: str = "data", size: PositiveInt = 64, **kwargs: Any) -> None:
        super().__init__(root=root, layout=None, target_type=None, tokenizer=None, max_length=1, **kwargs)
        self.size = size

    def read(self) -> tuple[RawData, RawData]:
        """Decode the pictures, or read the pixels if they were decoded before.

        Raises:
            PflError: If a file is missing or cannot be read, or a picture has no label.
        """
        remedy = f"download imagelabels.mat, setid.mat and 102flowers.tgz from {SOURCE} and unpack them there"
        folder = find_folder(self.root, FOLDER, "setid.mat", remedy)
        labels = _numbers(folder / "imagelabels.mat", "labels", remedy, CLASSES)
        ids: tuple[list[int], list[int]] = ([], [])
        for name, split in SPLITS.items():
            ids[split].extend(_numbers(folder / "setid.mat", name, remedy, len(labels)))
        with reading(folder / "setid.mat", remedy):
            if twice := len(ids[0]) + len(ids[1]) - len({*ids[0], *ids[1]}):
                raise ValueError(f"each picture must be in one split, got {twice:,} more than once")
        splits = [[folder / "jpg" / f"image_{number:05}.jpg" for number in split] for split in ids]
        images = read_pictures(splits, Path(self.root), f"flowers102-{self.size}", version=1, size=self.size)
        names = [*map(str, range(1, CLASSES + 1))]
        notes = {"splits": "trnid and valid for training; tstid for testing"}
        train, test = (
            RawData(pixels, labels[np.array(split) - 1] - 1, None, names, "NCHW", notes)
            for pixels, split in zip(images, ids, strict=True)
        )
        return train, test


def _numbers(path: Path, name: str, remedy: str, most: int) -> Any:
    """An array of a file of MATLAB, whole numbers from 1 on, ``[numbers]``."""
    with reading(path, remedy):
        numbers = whole_numbers(loadmat(path, appendmat=False, variable_names=[name])[name].flatten())
        check_values(numbers, (numbers >= 1) & (numbers <= most), name, f"whole numbers from 1 to {most}")
        return numbers.numpy()
