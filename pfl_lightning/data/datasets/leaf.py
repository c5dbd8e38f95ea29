"""The JSON folders that LEAF writes (arXiv:1812.01097, github.com/TalwalkarLab/leaf)."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch import Tensor

from pfl_lightning.data.cache import cached
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.progress import on_terminal
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError


class LeafUser(NamedTuple):
    """One user's samples in one file.

    Attributes:
        name: Name of the user.
        inputs: LEAF's ``x``, one entry per sample.
        targets: LEAF's ``y``, one entry per sample.
        path: The file, for error messages.
    """

    name: str
    inputs: list[Any]
    targets: list[Any]
    path: Path


Encode = Callable[[list[Any], list[Any]], tuple[Tensor, Tensor]]
Parsed = list[tuple[str, Tensor, Tensor]]
REMEDY = "create it again"
TYPES = {"inputs": torch.uint8, "targets": torch.int64, "users": torch.int64}


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


def read_leaf(folder: Path) -> Iterator[LeafUser]:
    """The users in all files of a folder; one file is in memory at a time. Progress is shown on a terminal.

    Raises:
        PflError: If a file cannot be read, or is not what LEAF writes.
    """
    for path in track(leaf_files(folder), f"reading {folder}", **on_terminal()):
        yield from _read_file(path)


def load_leaf(
    root: Path, recipe: str, encode: Encode, name: str, version: int
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
    types = {f"{each}{split}": kind for split in range(len(folders)) for each, kind in TYPES.items()}
    tensors = cached(lambda: _parse(folders, encode), types, files, root, name, version)
    splits = [
        LabelledData(tensors[f"inputs{split}"], tensors[f"targets{split}"], tensors[f"users{split}"])
        for split in range(len(folders))
    ]
    if len(splits) == 1:
        return splits[0], None
    train, test = splits
    if not torch.isin(tensors["users1"], tensors["users0"]).any():
        return train.join(test), None
    return train, test


def _read_file(path: Path) -> Iterator[LeafUser]:
    with reading(path, REMEDY):
        with path.open(encoding="utf-8") as file:
            content = json.load(file, parse_float=cache(float))  # equal pixels are one object: half the memory
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} instead of users and user_data")
        users = [_user(name, content["user_data"][name], path) for name in content["users"]]
    yield from users


def _user(name: str, data: dict[str, Any], path: Path) -> LeafUser:
    inputs, targets = data["x"], data["y"]
    if not (isinstance(inputs, list) and isinstance(targets, list)):
        raise ValueError(f"x and y of {name} are no lists")
    if len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets of {name}")
    return LeafUser(name, inputs, targets, path)


def _parse(folders: Sequence[Path], encode: Encode) -> dict[str, Tensor]:
    """The inputs, targets and users of each folder, with the folder's place in their names."""
    splits = [_encode_users(folder, encode) for folder in folders]
    names = sorted({name for users in splits for name, _, _ in users})
    numbers = {name: number for number, name in enumerate(names)}
    tensors = {}
    for split, users in enumerate(splits):
        tensors[f"inputs{split}"] = torch.cat([inputs for _, inputs, _ in users])
        tensors[f"targets{split}"] = torch.cat([targets for _, _, targets in users])
        tensors[f"users{split}"] = torch.cat([torch.full((len(each),), numbers[name]) for name, _, each in users])
    return tensors


def _encode_users(folder: Path, encode: Encode) -> Parsed:
    users: Parsed = []
    for name, inputs, targets, path in read_leaf(folder):
        with reading(path, REMEDY, place=name):
            users.append((name, *encode(inputs, targets)))
    if not users:
        raise PflError(f"data.root: no users in the files of '{folder}'")
    return users
