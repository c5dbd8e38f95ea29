from typing import NamedTuple

import torch
from torch import Tensor

from pfl_lightning.data.partitions import Labels
from pfl_lightning.errors import PflError


class LabelledData(NamedTuple):
    """Samples of a data set.

    Attributes:
        inputs: Raw inputs, ``[samples, ...]``.
        targets: Class labels, or real numbers for a regression, ``[samples]``.
        users: User that each sample comes from, ``[samples]``, counted from 0; None if unknown.
    """

    inputs: Tensor
    targets: Tensor
    users: Tensor | None = None

    def labels(self) -> Labels:
        """The labels and users, for partitions."""
        return Labels(classes_of(self.targets).numpy(), None if self.users is None else self.users.numpy())

    def keep(self, classes: tuple[int, int] | None) -> "LabelledData":
        """Only the samples of classes from the first (inclusive) to the second (exclusive), renumbered from 0."""
        if classes is None:
            return self
        kept = (self.targets >= classes[0]) & (self.targets < classes[1])
        return LabelledData(
            self.inputs[kept], self.targets[kept] - classes[0], None if self.users is None else self.users[kept]
        )

    def join(self, other: "LabelledData | None") -> "LabelledData":
        """These samples, followed by the others."""
        if other is None:
            return self
        users = None if self.users is None or other.users is None else torch.cat([self.users, other.users])
        return LabelledData(torch.cat([self.inputs, other.inputs]), torch.cat([self.targets, other.targets]), users)


def classes_of(targets: Tensor) -> Tensor:
    """Class of each target, int64 ``[samples]``; a regression has a single class."""
    return torch.zeros(len(targets), dtype=torch.int64) if targets.is_floating_point() else targets.long()


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
            f"data.classes: {list(classes)} is not possible; allowed: the first class and the last one plus 1, "
            f"two increasing numbers from 0 to {official}"
        )
    return classes[1] - classes[0]
