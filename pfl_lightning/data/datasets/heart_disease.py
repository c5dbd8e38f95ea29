from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.labelled import LabelledData, warn_unless_official
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import check_values

SITES = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = 14
USED = (*range(10), 13)  # slope, vessels and defect, which most patients of three sites lack, are left out
DISEASE = 10  # among those used: 0, or 1 to 4 for a disease
CODES = {2: (1, 2, 3, 4), 6: (0, 1, 2), DISEASE: (0, 1, 2, 3, 4)}  # kinds of pain, of electrocardiogram, grades
PLAIN = (0, 1, 3, 4, 5, 7, 8, 9)  # columns that are features as they are
SEED, TRAIN_SHARE, FEWEST = 43, 0.66, 3  # as in FLamby
PATIENTS = (486, 254)
ADDRESS = "https://archive.ics.uci.edu/static/public/45/heart+disease.zip"


class HeartDisease(OfficialData):
    """Heart disease: whether a patient of one of four hospitals has it, FLamby's Fed-Heart-Disease.

    The files are ``processed.<site>.data`` of Cleveland, Budapest, Zurich and Basel, and Long Beach. An input are 13
    numbers of a patient: age, sex, blood pressure, cholesterol, sugar, highest pulse, angina and ST depression at
    exercise, three indicators of the kind of pain and two of the electrocardiogram. The classes are healthy and
    disease, which is each of the grades 1 to 4. Patients with a missing number are left out: 740 of 920 stay. Each site
    is a client.

    34 % of each site's patients are for testing, with the same share of both classes: those that FLamby takes. Each
    feature has mean 0 and standard deviation 1 over the site's own training patients.

    Paper: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic
    Healthcare Settings", NeurIPS 2022, arXiv:2210.04620.

    Differs: a feature that is the same for all training patients of a site is only shifted there, where FLamby divides
    it by 1e-9.

    Args:
        kwargs: See ``OfficialData``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(standardize=False, **kwargs)

    def read(self) -> tuple[RawData, RawData]:
        """Read the four files.

        Raises:
            PflError: If they are missing or cannot be read.
        """
        parts: tuple[list[RawData], list[RawData]] = ([], [])
        for site in SITES:
            inputs, targets = _read(self._file(site))
            train, test = _split(targets)
            mean, deviation = inputs[train].mean(0), inputs[train].std(0, ddof=1)
            deviation[(inputs[train] == inputs[train[0]]).all(0)] = 1
            for part, members in zip(parts, (train, test), strict=True):
                scaled = (inputs[members] - mean) / deviation
                part.append(RawData(scaled, targets[members], [site] * len(members)))
        train_data, test_data = map(_pooled, parts)
        return train_data, test_data

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """See ``OfficialData``; warns if there are other numbers of patients than FLamby has.

        Raises:
            PflError: See ``read``.
        """
        train, test = super().load()
        assert test is not None, "read has two splits"
        warn_unless_official(f"HeartDisease in '{self.root}'", (train, test), PATIENTS)
        return train, test

    def _file(self, site: str) -> Path:
        path = Path(self.root) / f"processed.{site}.data"
        if not path.is_file():
            raise PflError(
                f"data.root: no heart disease in '{self.root}' (looked for {path.name}); download {ADDRESS} and unzip "
                "it there"
            )
        return path


def _pooled(sites: Sequence[RawData]) -> RawData:
    """The patients of all sites."""
    inputs, targets, clients = (np.concatenate([site[place] for site in sites]) for place in range(3))
    notes = {"scale": "standardised by the mean and deviation of each site's training patients"}
    return RawData(inputs, targets, clients, ("healthy", "disease"), "NF", notes)


def _read(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features ``[patients, 13]`` and classes ``[patients]`` of those patients of a site that lack no number."""
    with reading(path, "unzip heart+disease.zip again"):
        words = np.loadtxt(path, dtype=str, delimiter=",", ndmin=2)
        if words.shape[1] != COLUMNS:
            raise ValueError(f"{words.shape[1]} columns instead of {COLUMNS}")
        words = words[:, USED]
        is_missing = torch.from_numpy(words == "?")
        numbers = torch.from_numpy(np.where(is_missing, "0", words).astype(np.float64))
        check_values(numbers, numbers.isfinite(), "values", "finite numbers")
        for column, codes in CODES.items():
            is_code = torch.isin(numbers[:, column], torch.tensor(codes, dtype=numbers.dtype))
            check_values(
                numbers[:, column], is_code | is_missing[:, column], f"column {USED[column] + 1}", f"one of {codes}"
            )
    patients = numbers[~is_missing.any(1)].numpy()
    indicators = [patients[:, column] == code for column in (2, 6) for code in CODES[column][1:]]
    return np.column_stack([patients[:, PLAIN], *indicators]), (patients[:, DISEASE] > 0).astype(np.int64)


def _split(targets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """FLamby's training and test patients of a site, in the order of the file."""
    from sklearn.model_selection import train_test_split  # which takes a second

    counts = np.bincount(targets, minlength=2)
    stratify = targets if counts.min() >= FEWEST else None
    train, test = train_test_split(
        np.arange(len(targets)),
        train_size=TRAIN_SHARE,
        test_size=1 - TRAIN_SHARE,
        random_state=SEED,
        stratify=stratify,
    )
    return np.sort(train), np.sort(test)
