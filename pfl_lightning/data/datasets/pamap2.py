from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from pfl_lightning.data.cache import cached
from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.holdout import side_by_side
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import bar_options, reading
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import check_values

ACTIVITIES = {
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    5: "running",
    6: "cycling",
    7: "Nordic walking",
    12: "ascending stairs",
    13: "descending stairs",
    16: "vacuum cleaning",
    17: "ironing",
    24: "rope jumping",
}
OTHERS = (0, 8, 9, 10, 11, 18, 19, 20)  # 0 is between activities; the others are of no protocol
COLUMNS = 54
UNITS = (3, 20, 37)  # first column of the units at hand, chest and ankle
SENSORS = (1, 2, 3, 7, 8, 9, 10, 11, 12)  # of a unit: acceleration up to 16 g, angular velocity, magnetic field
CHANNELS = [unit + sensor for unit in UNITS for sensor in SENSORS]
WINDOW, STEP = 256, 128
FOLDER = "PAMAP2_Dataset"
ARCHIVE = "https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip"


class PAMAP2(OfficialData):
    """PAMAP2: the twelve activities of its protocol, of nine people with sensors at hand, chest and ankle.

    The files are ``PAMAP2_Dataset/Protocol/subject<number>.dat``; those in ``Optional`` are not read. An input is a
    window ``[27, 256]`` of 2.56 s at 100 Hz: acceleration, angular velocity and magnetic field of the three units, with
    three axes each. The classes are the activities in the order of their ids. Each person is a client.

    A window lies within one stretch of an activity, and begins 1.28 s after the one before. Gaps of a sensor are filled
    in on a straight line. There is no official split. The windows of each person and activity keep their order in time,
    all activities side by side, so that the last part of each activity is held out; windows between the two parts are
    left out, so that no held-out window shares a step with a training window of the same client, if clients are people.

    Paper: Reiss and Stricker, "Introducing a New Benchmarked Dataset for Activity Monitoring", ISWC 2012; used by
    PFLlib, arXiv:2312.04992.

    Differs: PFLlib's windows run from one activity into the next, with the smallest id as their class; its gaps are 0,
    its numbers are divided by the largest, and its test windows are drawn at random.

    Args:
        kwargs: See ``OfficialData``.
    """

    def read(self) -> tuple[RawData, None]:
        """Read the files, slowly the first time, and cut them into windows.

        Raises:
            PflError: If the files are missing or cannot be read.
        """
        files = self._files()
        content = cached(lambda: _parse(files), files, Path(self.root), "pamap2", version=1)
        stretches = content["rows"].split(content["lengths"].tolist())
        windows = [rows.unfold(0, WINDOW, STEP) for rows in stretches]  # [windows, 27, 256] each
        counts = torch.tensor([*map(len, windows)])
        numbers, activities, people = (
            values.repeat_interleave(counts).numpy()
            for values in (torch.arange(len(counts)), content["activities"], content["people"])
        )
        targets = np.searchsorted([*ACTIVITIES], activities)
        order, self.overlap = side_by_side(people, targets, numbers)
        inputs = torch.cat(windows)[torch.from_numpy(order)]
        notes = {"splits": "Protocol alone; the last part of each activity is held out"}
        return RawData(inputs, targets[order], people[order], [*ACTIVITIES.values()], "NCL", notes), None

    def _files(self) -> list[Path]:
        for folder in (Path(self.root) / FOLDER, Path(self.root)):
            if files := sorted(folder.glob("Protocol/subject*.dat")):
                return files
        raise PflError(
            f"data.root: no PAMAP2 in '{self.root}' (looked for {FOLDER}/Protocol/subject*.dat, with and without "
            f"{FOLDER}/); download {ARCHIVE} and unzip it there, and the archive in it"
        )


def _parse(files: Sequence[Path]) -> dict[str, Tensor]:
    """Rows of all stretches, ``[rows, 27]``; and the length, the activity and the person of each stretch."""
    rows: list[NDArray[np.float32]] = []
    labels: list[tuple[int, int, int]] = []
    for path in track(files, "reading PAMAP2", **bar_options()):
        with reading(path, "unzip the archive again"):
            person = int(path.stem.removeprefix("subject"))
            activities, sensors = _read(path)
            bounds = np.flatnonzero(np.diff(activities, prepend=-1, append=-1)).tolist()
            for start, end in pairwise(bounds):
                if activities[start] in ACTIVITIES and end - start >= WINDOW:
                    rows.append(sensors[start:end])
                    labels.append((end - start, int(activities[start]), person))
    if not rows:
        raise PflError(f"data.root: no activity in '{files[0].parent}' lasts for {WINDOW} rows")
    lengths, of_stretches, people = torch.tensor(labels, dtype=torch.int64).unbind(1)
    stacked = torch.from_numpy(np.concatenate(rows))
    return {"rows": stacked, "lengths": lengths, "activities": of_stretches, "people": people}


def _read(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Activity ``[rows]`` and sensors ``[rows, 27]`` of a person, without gaps."""
    table = np.loadtxt(path, dtype=np.float32, ndmin=2)
    if table.shape[1] != COLUMNS:
        raise ValueError(f"{table.shape[1]} columns instead of {COLUMNS}")
    activities = torch.from_numpy(table[:, 1])
    is_known = torch.isin(activities, torch.tensor([*ACTIVITIES, *OTHERS], dtype=activities.dtype))
    check_values(activities, is_known, "activities", "ids of the data set")
    sensors = table[:, CHANNELS]
    for channel, column in zip(CHANNELS, sensors.T, strict=True):
        is_missing = np.isnan(column)
        if is_missing.all():
            raise ValueError(f"column {channel + 1} has no number")
        gaps, known = map(np.flatnonzero, (is_missing, ~is_missing))
        column[gaps] = np.interp(gaps, known, column[known])
    return table[:, 1].astype(np.int64), sensors
