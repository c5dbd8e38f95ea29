from collections.abc import Sequence
from pathlib import Path

from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.own.image_folders import read_pictures
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import find_folder, reading

FOLDER = "tiny-imagenet-200"
ARCHIVE = f"http://cs231n.stanford.edu/{FOLDER}.zip"
REMEDY = f"unzip {FOLDER}.zip again"


class TinyImageNet(OfficialData):
    """Tiny ImageNet: colour images of 64 x 64 pixels in 200 of ImageNet's classes.

    The files are those of ``tiny-imagenet-200.zip``. An input is ``[3, 64, 64]``; pictures that are stored in grey have
    three equal channels. Classes count in the order of ``wnids.txt`` and have their names from ``words.txt``.

    The training samples are the 500 of each class in ``train``. The test samples are the 10,000 of ``val``, whose
    classes are in ``val/val_annotations.txt``; those of ``test`` have no labels and are not read. The images are
    decoded once and then kept in ``.pfl_cache``.

    Paper: Le and Yang, "Tiny ImageNet Visual Recognition Challenge", report of Stanford's course CS 231N, 2015; used by
    PFLlib, arXiv:2312.04992.

    Differs: PFLlib splits the samples of ``train`` alone, a quarter of each client's for testing
    (``test_fraction: 0.25`` does so with all samples).
    """

    def read(self) -> tuple[RawData, RawData]:
        """Decode the pictures, or read the pixels if they were decoded before.

        Raises:
            PflError: If files are missing, one cannot be read, or a picture has no class.
        """
        folder = find_folder(self.root, FOLDER, "wnids.txt", f"download {ARCHIVE} and unzip it there")
        with reading(folder / "wnids.txt", REMEDY):
            wnids = (folder / "wnids.txt").read_text(encoding="utf-8").split()
        splits = [_train(folder, wnids), _val(folder, wnids)]
        images = read_pictures(splits, Path(self.root), "tiny_imagenet", version=1)
        notes = {"splits": "train; val for testing; test is not used, since it has no labels"}
        names = _class_names(folder / "words.txt", wnids)
        train, test = (
            RawData(pixels, [*split.values()], None, names, "NCHW", notes)
            for pixels, split in zip(images, splits, strict=True)
        )
        return train, test


def _class_names(path: Path, wnids: Sequence[str]) -> list[str]:
    """The first word for each class; its number in WordNet where there is none."""
    if not path.is_file():
        return [*wnids]
    with reading(path, REMEDY):
        words = dict(line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return [words.get(wnid, wnid).partition(",")[0] for wnid in wnids]


def _train(folder: Path, wnids: Sequence[str]) -> dict[Path, int]:
    """The class of each training picture."""
    pictures = {}
    for number, wnid in enumerate(wnids):
        place = folder / "train" / wnid / "images"
        with reading(place, REMEDY):
            found = sorted(place.glob("*.JPEG"))
            if not found:
                raise ValueError("no pictures of a class of wnids.txt")
        pictures.update(dict.fromkeys(found, number))
    return pictures


def _val(folder: Path, wnids: Sequence[str]) -> dict[Path, int]:
    """The class of each test picture; lines are in any order."""
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    pictures = {}
    path = folder / "val" / "val_annotations.txt"
    with reading(path, REMEDY):
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            words = text.split("\t")
            if len(words) != 6 or words[1] not in numbers:
                raise ValueError(f"line {line} must be a picture, a class and 4 numbers, with tabs, got {text!r}")
            pictures[folder / "val" / "images" / words[0]] = numbers[words[1]]
        if odd := {*(folder / "val" / "images").glob("*.JPEG")} ^ {*pictures}:
            raise ValueError(f"each picture must have a file and a line, got only one of them for {min(odd).name}")
    return pictures
