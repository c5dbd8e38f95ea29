from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.data.datasets.leaf import leaf_files, read_leaf
from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.labelled import whole_numbers
from pfl_lightning.data.own.image_folders import read_pictures
from pfl_lightning.data.own.raw_data import Array, RawData
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError

FOLDER = "celeba"
PICTURES = "img_align_celeba"
PEOPLE = "identity_CelebA.txt"
ATTRIBUTES = "list_attr_celeba.txt"
OF_LEAF = "Smiling"
FEWEST = 5  # pictures of a person, in LEAF
REMEDY = f"download {PICTURES}.zip, {PEOPLE} and {ATTRIBUTES} from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"


class Faces(NamedTuple):
    """Pictures, whether each has each attribute, 0 or 1, ``[pictures, attributes]``, and whom each shows."""

    pictures: list[Path]
    targets: Array
    people: Array


class CelebA(OfficialData):
    """CelebA: faces of celebrities with 40 attributes; a celebrity is a client.

    The files are ``identity_CelebA.txt``, ``list_attr_celeba.txt`` and the folder ``img_align_celeba`` of the 202,599
    aligned pictures, in ``celeba`` or in the root; or without them LEAF's JSON files, with the pictures in
    ``data/raw/img_align_celeba``. An input is ``[3, size, size]``. The target is one attribute, as two classes, or
    several, as labels of each picture. The pictures are decoded once and then kept in ``.pfl_cache``.

    As in LEAF, those with fewer than 5 pictures are left out, which leaves 200,288 pictures of 9,343 people. A quarter
    of each one's pictures is for testing (``test_fraction``). The official split is not used: its test samples are of
    other people, as those of ``test_clients`` are. LEAF's test samples are used where they are of the same people.

    Paper: Liu et al., "Deep Learning Face Attributes in the Wild", ICCV 2015, arXiv:1411.7766; LEAF: Caldas et al.,
    "LEAF: A Benchmark for Federated Settings", 2018, arXiv:1812.01097.

    Args:
        root: The folder with ``celeba`` or with LEAF's ``data``, or one of them itself.
        attributes: The target: an attribute, several, or None for all 40. LEAF's files only have Smiling.
        size: Pixels of a side that pictures are resized to.
        kwargs: See ``OfficialData``.
    """

    def __init__(
        self,
        root: str = "data",
        attributes: str | list[str] | None = OF_LEAF,
        size: PositiveInt = 84,
        **kwargs: Any,
    ) -> None:
        super().__init__(root=root, **kwargs)
        self.attributes = attributes
        self.size = size

    def read(self) -> tuple[RawData, RawData | None]:
        """Decode the pictures, or read the pixels if they were decoded before.

        Raises:
            PflError: If files are missing or cannot be read, or there is no such attribute.
        """
        root = Path(self.root)
        names = [self.attributes] if isinstance(self.attributes, str) else self.attributes
        official = next((place for place in (root / FOLDER, root) if (place / PEOPLE).is_file()), None)
        if official is not None:
            with reading(official / ATTRIBUTES, REMEDY):
                files, names, targets = _attributes(official / ATTRIBUTES, names)
            splits = [_of_known_people(official, files, targets)]
            notes = {"splits": f"none; those with fewer than {FEWEST} pictures are left out"}
        elif names == [OF_LEAF]:
            splits = _leaf(root)
            notes = {}
        else:
            raise PflError(f"data.attributes must be {OF_LEAF} with LEAF's files, got {self.attributes}")
        self.target_type = "labels" if len(names) > 1 else "classes"
        class_names = names if len(names) > 1 else [f"not {names[0]}", *names]
        pictures = [split.pictures for split in splits]
        images = read_pictures(pictures, root, f"celeba-{self.size}", version=1, size=self.size)
        raw = [
            RawData(pixels, split.targets, split.people, class_names, "NCHW", notes)
            for pixels, split in zip(images, splits, strict=True)
        ]
        return raw[0], raw[1] if len(raw) > 1 else None


def _attributes(path: Path, names: Sequence[str] | None) -> tuple[list[str], list[str], Array]:
    """The pictures, the names of the attributes, and whether each picture has each of them.

    Raises:
        PflError: If there is no such attribute.
        ValueError: If the file holds something else.
    """
    with path.open(encoding="utf-8") as file:
        count = int(file.readline())
        every = file.readline().split()
        lines = file.readlines()
    chosen = every if names is None else [*names]
    if unknown := {*chosen} - {*every}:
        raise PflError(f"data.attributes must be of {', '.join(every)}, got {min(unknown)}")
    files = np.loadtxt(lines, dtype=str, usecols=0, ndmin=1).tolist()
    signs = np.loadtxt(lines, dtype=np.int64, usecols=[1 + every.index(name) for name in chosen], ndmin=2)
    if len(files) != count:
        raise ValueError(f"the first line says {count:,} pictures, got {len(files):,}")
    if not (odd := np.isin(signs, (-1, 1)).all(1)).all():
        raise ValueError(f"attributes must be 1 or -1, got {signs[odd.argmin()].tolist()} for {files[odd.argmin()]}")
    return files, chosen, (signs > 0).astype(np.int64)  # -1 would be unknown


def _of_known_people(folder: Path, files: Sequence[str], targets: Array) -> Faces:
    """The pictures of those who have enough of them."""
    with reading(folder / PEOPLE, REMEDY):
        listed = dict(np.loadtxt(folder / PEOPLE, dtype=str, ndmin=2).tolist())
        if odd := {*files} ^ {*listed}:
            raise ValueError(f"it must list the pictures of {ATTRIBUTES}, {min(odd)} is in one of them only")
        people = np.array([listed[file] for file in files])
        _, numbers, counts = np.unique(people, return_inverse=True, return_counts=True)
        chosen = np.flatnonzero(counts[numbers] >= FEWEST)
        if not len(chosen):
            raise ValueError(f"nobody has {FEWEST} pictures or more")
    pictures = [folder / PICTURES / files[place] for place in chosen.tolist()]
    return Faces(pictures, targets[chosen], people[chosen])


def _leaf(root: Path) -> list[Faces]:
    """LEAF's training and test pictures; all in one if they are of different people."""
    files = leaf_files(root, f"nor {FOLDER}/{PEOPLE}; {REMEDY}, or run LEAF's data/celeba/preprocess.sh")
    data = files[0][0].parents[1]
    folder = data / "raw" / PICTURES
    splits = [_faces(split, folder) for split in files]
    if len(splits) > 1 and {*splits[0].people}.isdisjoint(splits[1].people):
        pictures, targets, people = zip(*splits, strict=True)
        return [Faces([*chain(*pictures)], np.concatenate(targets), np.concatenate(people))]
    return splits


def _faces(files: Sequence[Path], folder: Path) -> Faces:
    users = [*read_leaf(files, lambda names, labels: [*zip(names, whole_numbers(labels).tolist(), strict=True)])]
    pictures = [folder / name for _, faces in users for name, _ in faces]
    targets = np.array([[label] for _, faces in users for _, label in faces])
    return Faces(pictures, targets, np.array([user for user, faces in users for _ in faces]))
