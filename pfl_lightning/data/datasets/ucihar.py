from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.data.cache import cached
from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.holdout import side_by_side
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import check_values

ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
SIGNALS = [f"{kind}_{axis}" for kind, axis in product(("body_acc", "body_gyro", "total_acc"), "xyz")]
SPLITS = ("train", "test")
STEPS = 128
FOLDER = "UCI HAR Dataset"
ARCHIVE = "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"


class UCIHAR(OfficialData):
    """UCI HAR: six activities of 30 people, recorded for 2.56 s by the sensors of a phone at the waist.

    The files are ``UCI HAR Dataset/{train,test}/``: ``y_*.txt``, ``subject_*.txt`` and ``Inertial Signals/*.txt``. An
    input is a window ``[9, 128]``: at 50 Hz the acceleration of the body, its angular velocity and the total
    acceleration, with three axes each. The classes are walking, walking upstairs, walking downstairs, sitting, standing
    and laying. Each person is a client.

    The official test samples are those of nine other people, so no person has both, and the two splits are pooled.
    Successive windows share half of their steps, so the last part of each activity is held out (``test_fraction``), as
    in ``PAMAP2``; no held-out window shares a step with a training window of the same client, if clients are people.

    Paper: Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013; with
    people as clients in PFLlib, arXiv:2312.04992.

    Differs: PFLlib's test windows are drawn at random.
    """

    def read(self) -> tuple[RawData, None]:
        """Read the windows of all people, slowly the first time.

        Raises:
            PflError: If files are missing or cannot be read.
        """
        folder = self._folder()
        files = [path for split in SPLITS for path in _files(folder, split)]
        content = cached(lambda: _parse(folder), files, Path(self.root), "ucihar", version=1)
        people, targets = content["people"].numpy(), content["targets"].numpy()
        changes = (np.diff(people, prepend=people[:1]) != 0) | (np.diff(targets, prepend=targets[:1]) != 0)
        order, self.overlap = side_by_side(people, targets, np.cumsum(changes))
        words = "train and test, which are other people, are pooled; the last part of each activity is held out"
        inputs = content["windows"][torch.from_numpy(order)]
        return RawData(inputs, targets[order], people[order], ACTIVITIES, "NCL", {"splits": words}), None

    def _folder(self) -> Path:
        for folder in (Path(self.root) / FOLDER, Path(self.root)):
            if (folder / "train").is_dir():
                return folder
        raise PflError(
            f"data.root: no UCI HAR in '{self.root}' (looked for {FOLDER}/train, with and without {FOLDER}/); download "
            f"{ARCHIVE} and unzip it there, and the archive in it"
        )


def _files(folder: Path, split: str) -> list[Path]:
    """The files of activities, of people and of each signal."""
    signals = [folder / split / "Inertial Signals" / f"{name}_{split}.txt" for name in SIGNALS]
    return [folder / split / f"y_{split}.txt", folder / split / f"subject_{split}.txt", *signals]


def _parse(folder: Path) -> dict[str, Tensor]:
    """All windows ``[windows, 9, 128]``, their classes and their people, ``[windows]`` each."""
    parts = []
    for split in SPLITS:
        activities, people, *signals = _files(folder, split)
        targets = _read(activities, np.int64, 1)
        with reading(activities, "unzip the archive again"):
            in_range = (targets >= 1) & (targets <= len(ACTIVITIES))
            check_values(torch.from_numpy(targets), torch.from_numpy(in_range), "activities", "1 to 6")
        windows = np.stack([_read(path, np.float32, STEPS, len(targets)) for path in signals], 1)
        parts.append((windows, targets[:, 0] - 1, _read(people, np.int64, 1, len(targets))[:, 0]))
    arrays = [torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True)]
    return dict(zip(("windows", "targets", "people"), arrays, strict=True))


def _read(path: Path, dtype: type, columns: int, lines: int | None = None) -> NDArray[Any]:
    """The numbers of a file, ``[lines, columns]``; as many lines as there are activities, if they are known."""
    with reading(path, "unzip the archive again"):
        numbers: NDArray[Any] = np.loadtxt(path, dtype=dtype, ndmin=2)
        expected = (len(numbers) if lines is None else lines, columns)
        if numbers.shape != expected:
            raise ValueError(f"{list(numbers.shape)} numbers instead of {list(expected)}")
        check_values(torch.from_numpy(numbers), torch.from_numpy(np.isfinite(numbers)), "values", "finite numbers")
        return numbers
