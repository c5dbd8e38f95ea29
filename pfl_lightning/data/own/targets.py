"""Targets of any origin as the tensors that tasks take, and which task they are of."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.data.own.raw_data import Array, RawData, joined, plain_array, shown, warn_of_likeness
from pfl_lightning.tasks import (
    IGNORED,
    Classification,
    MultiLabel,
    Regression,
    Segmentation,
    Survival,
    Task,
    check_values,
)

TargetType = Literal["classes", "labels", "numbers", "survival", "tokens"]
LABELS = (-1, 0, 1)
MANY_CLASSES = 20  # whole numbers that can be a count, if some are there once
BINS = 10  # of survival times
FEW_CLASSES = 100  # whole numbers as floats that look like classes, if each has several samples


class Targets(NamedTuple):
    """Targets as tensors.

    Attributes:
        splits: Those of each split, as the task takes them.
        task: What they are.
        names: Names of the classes or labels, none for a regression.
        understood: What they were taken for, for people.
    """

    splits: list[Tensor]
    task: Task
    names: tuple[str, ...] = ()
    understood: str = ""


def encode_targets(splits: Sequence[RawData], target_type: TargetType | None, standardize: bool) -> Targets:
    """Targets as tensors, and what they are.

    Whole numbers and text ``[samples]`` are classes, floats a regression. Two columns or more, ``[samples, columns]``,
    are labels as whole numbers, 1, 0 or -1 for unknown, or floats for a regression of several numbers. Whole numbers
    ``[samples, height, width]`` are masks: the class of each pixel from 0, the background, or 255 to ignore it. Two
    columns are event and time for ``target_type`` survival alone.

    Args:
        splits: The training samples, and those for testing if there are any.
        target_type: See ``OwnData``.
        standardize: See ``OwnData``.

    Raises:
        ValueError: If they are none of these, or could be several.
    """
    if any(np.ndim(split.targets) > 2 for split in splits):
        return _masks(splits)
    targets, sizes = joined(_with_one_order(splits), "targets", axes=2)
    columns = targets.shape[1] if targets.ndim == 2 else 1
    if target_type is None:
        target_type = _type_of(targets, bool(splits[0].class_names))
    names = tuple(splits[0].class_names)
    if target_type == "numbers":
        return _numbers(targets, sizes, columns, standardize)
    if target_type == "survival":
        return _survival(targets, sizes)
    if target_type == "labels":
        requirement = "labels: 0, 1, or -1 for unknown; or floats for a regression"
        check_values(torch.from_numpy(targets), torch.from_numpy(np.isin(targets, LABELS)), "targets", requirement)
        labels = torch.from_numpy(targets.reshape(len(targets), -1).astype(np.int8))
        names = names or tuple(map(str, range(columns)))
        return _named(list(labels.split(sizes)), MultiLabel(), names)
    return _classes(targets, sizes, names)


def _type_of(targets: Array, have_names: bool) -> TargetType:
    """What targets are that can be only one thing.

    Args:
        targets: ``[samples]`` or ``[samples, columns]``.
        have_names: Whether the classes or labels have names.

    Raises:
        ValueError: If they can be several; it names the option that decides.
    """
    is_float = targets.dtype.kind == "f"
    if targets.ndim == 2:
        are_labels = np.isin(targets, LABELS).all()
        if are_labels and (targets >= 0).all() and (targets.sum(1) == 1).all():
            shape = list(targets.shape)
            raise ValueError(
                f"targets {shape} can be classes or labels, one for each sample; {_decided('classes', 'labels')}"
            )
        if is_float and are_labels:
            raise ValueError(f"targets of 0, 1 and -1 can be labels or numbers; {_decided('labels', 'numbers')}")
        return "numbers" if is_float else "labels"
    values, counts = np.unique(targets, return_counts=True)
    single = int((counts == 1).sum())
    if not is_float:
        if targets.dtype.kind != "U" and not have_names and len(values) > MANY_CLASSES and single > len(values) / 10:
            raise ValueError(f"targets are {len(values)} whole numbers, of which {single} are there once; {_decided()}")
        return "classes"
    if len(values) <= min(FEW_CLASSES, len(targets) / 5) and (values % 1 == 0).all():
        first = ", ".join(f"{value:.1f}" for value in values[:3])
        raise ValueError(f"targets are floats that look like {len(values)} classes ({first}, ...); {_decided()}")
    return "numbers"


def _decided(first: TargetType = "classes", second: TargetType = "numbers") -> str:
    return f"data.target_type must be {first} or {second}"


def _numbers(targets: Array, sizes: list[int], columns: int, standardize: bool) -> Targets:
    if targets.dtype.kind == "U":
        raise ValueError(f"targets must be numbers with data.target_type: numbers, got text such as '{targets[0]}'")
    numbers = torch.tensor(targets, dtype=torch.get_default_dtype())
    splits = list(numbers.split(sizes))
    mean, deviation = _moments(splits[0]) if standardize else (0.0, 1.0)
    task = Regression(mean=mean, deviation=deviation).sized(columns)
    words = f"{task.goal}, from {targets.min():g} to {targets.max():g}"
    if standardize:
        scale = f"(number - {mean:.4g}) / {deviation:.4g}" if columns == 1 else "each number standardised"
        words += f"; networks learn {scale}"
    return Targets(splits, task, (), words)


def _survival(targets: Array, sizes: list[int]) -> Targets:
    """Events and times, whose bins hold as many events of the training samples each."""
    if targets.ndim != 2 or targets.shape[1] != 2 or targets.dtype.kind == "U":
        wanted = "two columns of numbers, event and time, with data.target_type: survival"
        raise ValueError(f"targets must be {wanted}, got {targets.dtype} {list(targets.shape)}")
    numbers = torch.tensor(targets, dtype=torch.get_default_dtype())
    splits = list(numbers.split(sizes))
    events = splits[0][splits[0][:, 0] == 1, 1]
    shares = torch.arange(1, BINS) / BINS
    task = Survival(edges=sorted({*events.quantile(shares).tolist()}) if len(events) else ())
    words = f"{task.goal}, from {numbers[:, 1].min():g} to {numbers[:, 1].max():g}; {int(numbers[:, 0].sum()):,} events"
    return Targets(splits, task, (), words)


def _moments(numbers: Tensor) -> tuple[Any, Any]:
    """Mean and standard deviation, of several columns one for each; 1 where all are alike."""
    deviation, mean = torch.std_mean(numbers.double(), dim=0, correction=0)
    if (alike := numbers.amax(0) == numbers.amin(0)).any():
        warnings.warn("data: all training targets are alike" + " in a column" * alike.ndim, stacklevel=2)
    return mean.tolist(), deviation.where(~alike, 1).tolist()


def _classes(targets: Array, sizes: list[int], names: tuple[str, ...]) -> Targets:
    """Classes, counted from 0 in sorted order unless they have names already."""
    if targets.ndim == 2:
        targets = targets.argmax(1)
    if targets.dtype.kind == "f":
        whole = torch.from_numpy(targets % 1 == 0)
        check_values(torch.from_numpy(targets), whole, "targets", "whole numbers with data.target_type: classes")
        targets = targets.astype(np.int64)
    if names:
        in_range = torch.from_numpy((targets >= 0) & (targets < len(names)))
        check_values(torch.from_numpy(targets), in_range, "labels", f"whole numbers from 0 to {len(names) - 1}")
    values, numbers = np.unique(targets, return_inverse=True)
    warn_of_likeness("classes", [*map(str, values)])
    if len(values) < 2:
        raise ValueError(f"targets must be two classes or more, or floats for a regression, got only {values[0]}")
    if len(values) > max(2, len(targets) / 2):
        raise ValueError(f"targets have {len(values):,} values in {len(targets):,} samples; {_decided()}")
    if targets.dtype.kind != "U" and values[0] < 0 and len(values) > 2:
        raise ValueError(f"targets must be classes from 0, got {values[0]}; drop samples whose class is unknown")
    if names:
        numbers = targets
    split = list(torch.from_numpy(numbers.astype(np.int64)).split(sizes))
    result = _named(split, Classification(), names or tuple(map(str, values)))
    return _with_empty(result, {*values.tolist()} if names else {*range(len(values))})


def _with_empty(targets: Targets, present: set[int]) -> Targets:
    """The same targets, which also say which classes are not present."""
    if empty := [name for number, name in enumerate(targets.names) if number not in present]:
        return targets._replace(understood=f"{targets.understood}; without samples: {shown(empty)}")
    return targets


def _named(splits: list[Tensor], task: Task, names: tuple[str, ...]) -> Targets:
    sized = task.sized(len(names))
    return Targets(splits, sized, names, f"{sized.goal}: {shown(names)}")


def _with_one_order(splits: Sequence[RawData]) -> list[Array]:
    """The targets of each split, renumbered where its classes have the names of the first in another order.

    Raises:
        ValueError: If a class of another split is none of the first.
    """
    order = [*splits[0].class_names]
    arrays = []
    for split in splits:
        targets = split.targets
        if [*split.class_names] != order:
            if unknown := {*split.class_names} - {*order}:
                known = shown(order) or "classes without names"
                raise ValueError(f"test class '{min(unknown)}' must be one of training: {known}")
            places = np.array([order.index(name) for name in split.class_names])
            targets = places[plain_array(targets, "targets")]
        arrays.append(targets)
    return arrays


def _masks(splits: Sequence[RawData]) -> Targets:
    """Masks of images, uint8 ``[samples, height, width]``; see ``encode_targets``."""
    arrays = [plain_array(split.targets, "targets") for split in splits]
    for array in arrays:
        if array.ndim != 3 or array.dtype.kind == "f":
            wanted = "whole numbers [samples, height, width] to be masks"
            raise ValueError(f"targets must be {wanted}, got {array.dtype} of the shape {list(array.shape)}")
        requirement = f"classes counted from 0, or {IGNORED} to ignore a pixel"
        in_range = (array >= 0) & (array <= IGNORED)
        check_values(torch.from_numpy(array), torch.from_numpy(in_range), "masks", requirement)
    present = set[int]().union(*(np.unique(array).tolist() for array in arrays)) - {IGNORED}
    largest = max(present, default=0)
    if not largest:
        raise ValueError(f"masks must have two classes or more, got only 0 and {IGNORED}, which is ignored")
    names = tuple(splits[0].class_names or map(str, range(largest + 1)))
    masks = [torch.from_numpy(array.astype(np.uint8)) for array in arrays]
    return _with_empty(_named(masks, Segmentation(), names), present)
