"""The JSON folders that LEAF writes (arXiv:1812.01097, github.com/TalwalkarLab/leaf)."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from pfl_lightning.data.cache import cached
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.reading import bar_options, reading
from pfl_lightning.errors import PflError

REMEDY = "create it again"
Encoded = TypeVar("Encoded")
Samples = tuple[Tensor, Tensor]  # inputs and targets


def leaf_files(root: Path, recipe: str) -> list[list[Path]]:
    """LEAF's files: those of the training and of the test samples, or all of them if they are not split.

    Args:
        root: The folder that holds LEAF's ``data`` folder, or that folder itself.
        recipe: How to make the files by hand; ends the error message.

    Returns:
        The JSON files in ``train`` and in ``test``, or those in one of ``train`` and ``all_data``, sorted.

    Raises:
        PflError: If there are none.
    """
    for folder in (root / "data", root):
        train, test, every = (sorted((folder / name).glob("*.json")) for name in ("train", "test", "all_data"))
        if train or every:
            return [files for files in (train, test) if files] if train else [every]
    raise PflError(
        f"data.root: no LEAF files in '{root}' (looked for data/train/*.json, data/test/*.json and "
        f"data/all_data/*.json, with and without data/); {recipe}"
    )


def read_leaf(
    files: Sequence[Path], encode: Callable[[list[Any], list[Any]], Encoded]
) -> Iterator[tuple[str, Encoded]]:
    """The users in some files; one file is in memory at a time. Progress is shown on a terminal.

    Args:
        files: The files.
        encode: What to make of a user's ``x`` and ``y``, which have one entry per sample; raises if it cannot.

    Yields:
        Name of the user, and what was made of its samples.

    Raises:
        PflError: If a file cannot be read.
    """
    for path in track(files, f"reading {files[0].parent}", **bar_options()):
        with reading(path, REMEDY):
            with path.open(encoding="utf-8") as file:
                content = json.load(file, parse_float=cache(float))  # equal pixels are one object: half the memory
            samples = content["user_data"]
            encoded = [(name, encode(samples[name]["x"], samples[name]["y"])) for name in content["users"]]
        yield from encoded


def load_leaf(
    root: Path, recipe: str, encode: Callable[[list[Any], list[Any]], Samples], name: str, version: int
) -> tuple[LabelledData, LabelledData | None]:
    """Read LEAF's files the first time, and a cache of them later.

    Args:
        root: See ``leaf_files``.
        recipe: See ``leaf_files``.
        encode: Makes inputs and targets of a user's ``x`` and ``y``; raises if it cannot.
        name: Name of the cache.
        version: Version of ``encode``.

    Returns:
        LEAF's training and test samples. All samples and None if there is one folder only, or if no user is in both:
        then LEAF has split the users, which is for ``data.test_clients`` to do.

    Raises:
        PflError: If the files are missing or cannot be read.
    """
    splits = leaf_files(root, recipe)
    with reading(root, REMEDY):
        tensors = cached(lambda: _parse(splits, encode), [*chain(*splits)], root, name, version)
    sizes = tensors["sizes"].tolist()
    fields = [tensors[name] for name in LabelledData._fields]
    users = tensors["users"].split(sizes)
    if len(users) == 1 or not torch.isin(*users).any():
        return LabelledData(*fields), None
    train, test = map(LabelledData, *(values.split(sizes) for values in fields))
    return train, test


def _parse(splits: list[list[Path]], encode: Callable[[list[Any], list[Any]], Samples]) -> dict[str, Tensor]:
    """Inputs, targets and users of the samples, one split after the other, and how many each split has."""
    content = [list(read_leaf(files, encode)) for files in splits]
    names, inputs, targets = zip(*((name, *samples) for users in content for name, samples in users), strict=True)
    users = torch.from_numpy(np.unique(names, return_inverse=True)[1])
    return {
        "inputs": torch.cat(inputs),
        "targets": torch.cat(targets),
        "users": users.repeat_interleave(torch.tensor([*map(len, targets)])),
        "sizes": torch.tensor([sum(len(targets) for _, (_, targets) in users) for users in content]),
    }
