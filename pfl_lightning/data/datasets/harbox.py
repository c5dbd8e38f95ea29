from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from pfl_lightning.data.cache import cached
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.reading import bar_options, reading
from pfl_lightning.data.transforms import Numbers
from pfl_lightning.errors import PflError

ACTIVITIES = ("Call", "Hop", "typing", "Walk", "Wave")
SUFFIX = "_train.txt"
FOLDER = "large_scale_HARBox"
ARCHIVE = f"https://github.com/xmouyang/FL-Datasets-for-HAR/raw/main/datasets/HARBox/{FOLDER}.zip"


class HARBox(FederatedDataModule):
    """HARBox: five activities of 121 people, recorded for 2 s by the 9 motion sensor axes of a phone.

    The files are ``large_scale_HARBox/<user>/<activity>_train.txt``. An input is a window of 100 times (50 Hz) with 9
    numbers each, one time after the other. The classes are Call, Hop, typing, Walk, Wave. All users that are there are
    read, and count from 0 in the order of their numbers; DePRL's are 1 to 120.

    Of each user's n samples, floor(n / 5) + 1 are test samples: those that scikit-learn's ``train_test_split`` takes
    with ``random_state=0``, as in DePRL's code. The only sample of a user is a training sample.

    Paper: Ouyang et al., "ClusterFL: A Similarity-Aware Federated Learning System for Human Activity Recognition",
    MobiSys 2021; used by DePRL, arXiv:2312.10815.

    Args:
        standardize: Scale every feature to mean 0 and standard deviation 1 over the training samples.
        kwargs: See ``FederatedDataModule``.
    """

    num_classes = 5
    input_shape = (900,)

    def __init__(self, standardize: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.standardize = standardize

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read the files, slowly the first time.

        Raises:
            PflError: If the files are missing or cannot be read.
        """
        files = self._files()
        tensors = cached(lambda: _parse(files), files, Path(self.root), "harbox", version=1)
        activities = torch.tensor([ACTIVITIES.index(path.name.removesuffix(SUFFIX)) for path in files])
        people = torch.tensor([int(path.parent.name) for path in files]).unique(return_inverse=True)[1]
        inputs = tensors["windows"].flatten(1)
        targets, users = (labels.repeat_interleave(tensors["counts"]) for labels in (activities, people))
        is_test = torch.from_numpy(_held_out(users.numpy(), targets.numpy()))
        if self.standardize:
            deviation, mean = torch.std_mean(inputs[~is_test], dim=0, correction=0)
            inputs = (inputs - mean) / deviation.clamp(min=torch.finfo().tiny)
        samples = LabelledData(inputs, targets, users)
        return samples.take(~is_test), samples.take(is_test)

    def transform(self) -> Numbers:
        """The features, unchanged."""
        return Numbers()

    def _files(self) -> list[Path]:
        """The files, in the order of their paths."""
        for folder in (Path(self.root) / FOLDER, Path(self.root)):
            paths = [path for activity in ACTIVITIES for path in folder.glob(f"*/{activity}{SUFFIX}")]
            if users := [path for path in paths if path.parent.name.isdecimal()]:
                return sorted(users)
        raise PflError(
            f"data.root: no HARBox in '{self.root}' (looked for {FOLDER}/<user>/<activity>{SUFFIX}, with and without "
            f"{FOLDER}/); download {ARCHIVE} and unzip it there"
        )


def _parse(files: Sequence[Path]) -> dict[str, Tensor]:
    """Windows of all files, ``[windows, 100, 9]``, and how many each file has."""
    windows = [_read(path) for path in track(files, "reading HARBox", **bar_options())]
    counts = torch.tensor([*map(len, windows)])
    return {"windows": torch.from_numpy(np.concatenate(windows)), "counts": counts}


def _read(path: Path) -> NDArray[np.float32]:
    """Windows of a file: 100 lines each, the first of 10 columns is the time."""
    with reading(path, f"unzip {FOLDER}.zip again"):
        lines = np.loadtxt(path, dtype=np.float32, ndmin=2)
        return lines.reshape(-1, 100, 10)[..., 1:]


def _held_out(users: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which samples are test samples; a user's samples are numbered class by class."""
    test = np.zeros(len(users), dtype=np.bool_)
    order = np.lexsort((targets, users))
    for members in np.split(order, np.flatnonzero(np.diff(users[order])) + 1):
        size = min(len(members) // 5 + 1, len(members) - 1)
        test[members[RandomState(0).permutation(len(members))[:size]]] = True
    return test
