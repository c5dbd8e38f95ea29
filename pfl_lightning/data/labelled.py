import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pfl_lightning.client.examples import Transform
from pfl_lightning.data.partitions.partition import Labels
from pfl_lightning.errors import PflError
from pfl_lightning.models import InputKind
from pfl_lightning.tasks import Task, check_values


class LabelledData(NamedTuple):
    """Samples of a data set.

    Attributes:
        inputs: Raw inputs, ``[samples, ...]``.
        targets: What networks learn, such as class labels, ``[samples, ...]``.
        users: User that each sample comes from, ``[samples]``, counted from 0; None if unknown.
    """

    inputs: Tensor
    targets: Tensor
    users: Tensor | None = None

    def check(self, task: Task, transform: Transform, shape: tuple[int, ...], kind: InputKind) -> None:
        """Check that a network can learn from the samples.

        Args:
            task: What the targets are.
            transform: Turns raw inputs into network inputs.
            shape: Shape of a network input; of tokens, their number and that of the words.
            kind: What the inputs are.

        Raises:
            ValueError: If their numbers differ, or an input, a target or a user cannot be; it names the sample.
        """
        self.check_lengths()
        task.check(self.targets)
        target_shape = task.target_shape(shape)
        if target_shape is not None and self.targets.shape[1:] != target_shape:
            sizes = f"{list(target_shape)} each for inputs of {list(shape)}"
            raise ValueError(f"targets must have the shape {sizes}, got {list(self.targets.shape[1:])}")
        if self.users is not None:
            check_values(self.users, self.users >= 0, "users", "numbers from 0")
        if self.inputs.is_floating_point():
            check_values(self.inputs, self.inputs.isfinite(), "inputs", "finite numbers")
        expected = shape if kind == "numbers" else shape[:1]
        actual = transform(self.inputs[:1].clone()).shape[1:]
        if actual != expected:
            raise ValueError(f"inputs must have the shape {list(expected)}, got {list(actual)}")
        if kind != "numbers":
            tokens = self.inputs.numpy()  # torch would wrap what a small type cannot hold, such as 256 in uint8
            in_range = torch.from_numpy((tokens >= 0) & (tokens < shape[1]))
            check_values(self.inputs, in_range, "tokens", f"whole numbers from 0 to {shape[1] - 1}")

    def check_lengths(self) -> None:
        """Check that inputs, targets and users are as many.

        Raises:
            ValueError: If they are not.
        """
        for name, values in (("targets", self.targets), ("users", self.users)):
            if values is not None and len(values) != len(self.inputs):
                raise ValueError(f"{len(self.inputs)} inputs with {len(values)} {name}")

    def labels(self, task: Task) -> Labels:
        """The labels of a task and the users, for partitions."""
        return Labels(task.labels(self.targets).numpy(), None if self.users is None else self.users.numpy())

    def take(self, samples: Tensor) -> "LabelledData":
        """Only some samples, given by their places or by whether each is taken, ``[samples]``."""
        users = None if self.users is None else self.users[samples]
        return LabelledData(self.inputs[samples], self.targets[samples], users)

    def keep(self, classes: tuple[int, int] | None) -> "LabelledData":
        """Only the samples of classes from the first (inclusive) to the second (exclusive), renumbered from 0."""
        if classes is None:
            return self
        data = self.take((self.targets >= classes[0]) & (self.targets < classes[1]))
        return data._replace(targets=data.targets - classes[0])

    def join(self, other: "LabelledData | None") -> "LabelledData":
        """These samples, followed by the others."""
        if other is None:
            return self
        users = None if self.users is None or other.users is None else _joined(self.users, other.users)
        return LabelledData(_joined(self.inputs, other.inputs), _joined(self.targets, other.targets), users)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """One after the other: not copied if they lie so in memory, such as in a cache that processes share."""
    follows = second.data_ptr() == first.data_ptr() + first.nbytes and first.is_contiguous()
    is_one = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    if not (follows and is_one and second.is_contiguous()):
        return torch.cat([first, second])
    return first.as_strided((len(first) + len(second), *first.shape[1:]), first.stride())


def check_classes(classes: tuple[int, int] | None, official: int) -> int:
    """Check a choice of classes.

    Args:
        classes: The first class, and the last one plus 1; None for all.
        official: Number of classes of the data set.

    Returns:
        Number of chosen classes.

    Raises:
        PflError: If the two numbers are not increasing, or out of range.
    """
    if classes is None:
        return official
    if not 0 <= classes[0] < classes[1] <= official:
        raise PflError(
            f"data.classes must be two increasing numbers from 0 to {official}, the first class and the last one plus "
            f"1, got {list(classes)}"
        )
    return classes[1] - classes[0]


def whole_numbers(labels: Sequence[Any]) -> Tensor:
    """Labels from a file, int64 ``[samples]``.

    Raises:
        ValueError: If one of them is not a whole number.
    """
    numbers = torch.tensor(labels, dtype=torch.float64)
    check_values(numbers, numbers == numbers.long(), "labels", "whole numbers")
    return numbers.long()


def warn_unless_official(what: str, splits: tuple[LabelledData, LabelledData], official: tuple[int, int]) -> None:
    """Warn if the files have other numbers of training and test samples than the official data set."""
    sizes = tuple(len(split.targets) for split in splits)
    if sizes != official:
        warnings.warn(
            f"{what} is not the official data set: {sizes[0]:,} training and {sizes[1]:,} test samples instead of "
            f"{official[0]:,} and {official[1]:,}",
            stacklevel=3,
        )
