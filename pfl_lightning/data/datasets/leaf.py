"""The JSON folders that LEAF writes (arXiv:1812.01097, github.com/TalwalkarLab/leaf)."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from pfl_lightning.data.cache import cached
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.progress import on_terminal
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError

REMEDY = "create it again"
Encoded = TypeVar("Encoded")
Samples = tuple[Tensor, Tensor]  # inputs and targets


def leaf_folders(root: Path, recipe: str) -> list[Path]:
    """The folders with LEAF's files: of the training and of the test samples, or a single one with all samples.

    Args:
        root: The folder that holds LEAF's ``data`` folder, or that folder itself.
        recipe: How to make the files by hand; ends the error message.

    Returns:
        ``train`` and ``test``, or one of ``train`` and ``all_data``, of those that hold JSON files.

    Raises:
        PflError: If there are none.
    """
    for folder in (root / "data", root):
        if leaf_files(folder / "train"):
            return [folder / "train"] + ([folder / "test"] if leaf_files(folder / "test") else [])
        if leaf_files(folder / "all_data"):
            return [folder / "all_data"]
    raise PflError(
        f"data.root: no LEAF files in '{root}' (looked for data/train/*.json, data/test/*.json and "
        f"data/all_data/*.json, with and without data/); {recipe}"
    )


def leaf_files(folder: Path) -> list[Path]:
    """The JSON files of a folder, sorted; none if it is missing."""
    return sorted(folder.glob("*.json"))


def read_leaf(folder: Path, encode: Callable[[list[Any], list[Any]], Encoded]) -> Iterator[tuple[str, Encoded]]:
    """The users in all files of a folder; one file is in memory at a time. Progress is shown on a terminal.

    Args:
        folder: The folder.
        encode: What to make of a user's ``x`` and ``y``, which have one entry per sample; raises if it cannot.

    Yields:
        Name of the user, and what was made of its samples.

    Raises:
        PflError: If a file cannot be read.
    """
    for path in track(leaf_files(folder), f"reading {folder}", **on_terminal()):
        with reading(path, REMEDY):
            with path.open(encoding="utf-8") as file:
                content = json.load(file, parse_float=cache(float))  # equal pixels are one object: half the memory
            users = [(name, content["user_data"][name]) for name in content["users"]]
            encoded = [(name, encode(data["x"], data["y"])) for name, data in users]
        yield from encoded


def load_leaf(
    root: Path, recipe: str, encode: Callable[[list[Any], list[Any]], Samples], name: str, version: int
) -> tuple[LabelledData, LabelledData | None]:
    """Read LEAF's files the first time, and a cache of them later.

    Args:
        root: See ``leaf_folders``.
        recipe: See ``leaf_folders``.
        encode: Makes inputs and targets of a user's ``x`` and ``y``; raises if it cannot.
        name: Name of the cache.
        version: Version of ``encode``.

    Returns:
        LEAF's training and test samples. All samples and None if there is one folder only, or if no user is in both:
        then LEAF has split the users, which is for ``data.test_clients`` to do.

    Raises:
        PflError: If the files are missing or cannot be read.
    """
    folders = leaf_folders(root, recipe)
    files = [path for folder in folders for path in leaf_files(folder)]
    with reading(root, REMEDY):
        tensors = cached(lambda: _parse(folders, encode), files, root, name, version)
    sizes = tensors["sizes"].tolist()
    parts = zip(*(tensors[name].split(sizes) for name in LabelledData._fields), strict=True)
    train, *others = (LabelledData(*part) for part in parts)
    if not others:
        return train, None
    has_common_users = torch.isin(*tensors["users"].split(sizes)).any()
    return (train, others[0]) if has_common_users else (train.join(others[0]), None)


def _parse(folders: Sequence[Path], encode: Callable[[list[Any], list[Any]], Samples]) -> dict[str, Tensor]:
    """Inputs, targets and users of the folders' samples, one folder after the other, and how many each has."""
    splits = [list(read_leaf(folder, encode)) for folder in folders]
    names, inputs, targets = zip(*((name, *samples) for users in splits for name, samples in users), strict=True)
    users = torch.from_numpy(np.unique(names, return_inverse=True)[1])
    return {
        "inputs": torch.cat(inputs),
        "targets": torch.cat(targets),
        "users": users.repeat_interleave(torch.tensor([len(each) for each in targets])),
        "sizes": torch.tensor([sum(len(each) for _, (_, each) in users) for users in splits]),
    }
