"""Poison: what attackers train on in place of their samples."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval, NonNegativeInt, PositiveInt, Share
from pfl_lightning.client import Samples
from pfl_lightning.data.holdout import Split
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.data.transforms import ImageTransform
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.system import Attackers
from pfl_lightning.tasks import Classification, Task

WHITE = 255


class Poison(Attackers, ABC):
    """Attackers train on other samples than theirs; what clients are tested on stays."""

    def check(self, samples: Samples, task: Task, data: str) -> None:
        """Refuse data that cannot be poisoned.

        Args:
            samples: Those of all clients.
            task: What the targets are.
            data: Name of the data set.

        Raises:
            PflError: If they cannot be; by default if the targets are no classes.
        """
        if not isinstance(task, Classification):
            raise PflError(
                f"data.poison: {type(self).__name__} is not possible with {data}, whose targets are no classes; "
                "allowed: null"
            )

    @abstractmethod
    def __call__(self, inputs: Tensor, targets: Tensor, classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """What an attacker trains on, in place of these samples.

        Args:
            inputs: Raw inputs, ``[samples, ...]``; must not be changed in place.
            targets: Classes, ``[samples]``; neither.
            classes: Number of classes.
            random: The client's source of randomness.
        """

    def wanted(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
        """What the attackers want models to learn of test samples; by default nothing in particular.

        Args:
            inputs: Raw inputs, ``[samples, ...]``.
            targets: Classes, ``[samples]``.

        Returns:
            The inputs and the wanted classes of those that tell something, ``[some, ...]`` and ``[some]``.
        """
        return None


class LabelFlip(Poison):
    """Attackers train on opposite classes: ``y' = classes - 1 - y``.

    Paper: Karimireddy, He, Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021,
    arXiv:2012.10333 (label flipping).
    """

    def __call__(self, inputs: Tensor, targets: Tensor, classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """See ``Poison``."""
        return inputs, classes - 1 - targets


class PixelTrigger(Poison):
    """A backdoor: attackers train some pictures with a white square at the lower right as pictures of one class.

    Its success is that of benign clients' models on their test pictures of other classes, with the square: the split
    ``backdoor``, whose accuracy is the share that is taken for the class. One that knows of no square has some.

    Paper: Gu, Dolan-Gavitt, Garg, BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain,
    2017, arXiv:1708.06733.

    Differs: a crop or flip of the augmentation moves the square with the picture.

    Args:
        share: See ``Attackers``.
        target: The class.
        samples: Share of an attacker's samples that get the square, rounded.
        size: Width of the square in pixels.
        margin: Pixels between the square and the edges.
    """

    def __init__(
        self,
        share: ClosedUnitInterval = 0.2,
        target: NonNegativeInt = 0,
        samples: Share = 0.5,
        size: PositiveInt = 4,
        margin: NonNegativeInt = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(share, **kwargs)
        self.target = target
        self.samples = samples
        self.size = size
        self.margin = margin

    def check(self, samples: Samples, task: Task, data: str) -> None:
        """See ``Poison``; inputs must be pictures that have room for the square, and the class one of theirs."""
        super().check(samples, task, data)
        if not isinstance(samples.transform, ImageTransform):
            raise PflError(
                f"data.poison: PixelTrigger is not possible with {data}, whose inputs are no pictures of uint8 pixels; "
                "allowed: LabelFlip, null"
            )
        if self.target >= task.classes:
            raise PflError(f"data.poison.target must be a class, 0 to {task.classes - 1}, got {self.target}")
        shortest = min(samples.inputs.shape[-2:])
        if self.size + self.margin > shortest:
            raise PflError(
                f"data.poison.size must be at most {shortest} with its margin, the size of a picture, got "
                f"{self.size} and {self.margin}"
            )

    def __call__(self, inputs: Tensor, targets: Tensor, classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """See ``Poison``."""
        count = round(self.samples * len(targets))
        chosen = torch.randperm(len(targets), generator=random)[:count]
        pictures = inputs.index_copy(0, chosen, self.marked(inputs[chosen]))
        return pictures, targets.index_fill(0, chosen, self.target)

    def wanted(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Poison``: those of other classes."""
        others = targets != self.target
        return self.marked(inputs[others]), torch.full_like(targets[others], self.target)

    def marked(self, inputs: Tensor) -> Tensor:
        """Pictures with the square, ``[samples, channels, height, width]``."""
        marked = inputs.clone()
        rows, columns = (slice(side - self.margin - self.size, side - self.margin) for side in inputs.shape[-2:])
        marked[..., rows, columns] = WHITE
        return marked


def poisoned(
    samples: Samples, parts: Mapping[Split, Parts], poison: Poison, task: Task, attackers: Tensor, key: Key
) -> tuple[Samples, dict[Split, Parts]]:
    """The samples of all clients, followed by those that attackers make of them, and who holds which.

    Args:
        samples: The samples.
        parts: Those of each client in each split.
        poison: What attackers do.
        task: What the targets are.
        attackers: Whether each client attacks, ``[clients]``.
        key: Key of the clients' sources of randomness.

    Returns:
        These samples, and two splits of them: what clients train on once the attackers attack; and what these want of
        the benign clients' test samples, if they want anything.
    """
    inputs, targets = [samples.inputs], [samples.targets]
    trained, backdoor = [*parts["train"]], [part[:0] for part in parts["test"]]
    total = len(samples.targets)
    for client, attacks in enumerate(attackers.tolist()):
        rows = torch.from_numpy(parts["train" if attacks else "test"][client])
        own = samples.inputs[rows], samples.targets[rows]
        if attacks:
            random = torch.Generator().manual_seed(seed_of(*key, client))
            holder = trained
            made: tuple[Tensor, Tensor] | None = poison(*own, task.classes, random)
        else:
            holder = backdoor
            made = poison.wanted(*own)
        if made is not None:
            inputs.append(made[0])
            targets.append(made[1])
            holder[client] = np.arange(total, total + len(made[1]))
            total += len(made[1])
    everything = Samples(torch.cat(inputs), torch.cat(targets), samples.transform)
    splits: dict[Split, Parts] = {"poisoned": trained}
    if any(map(len, backdoor)):
        splits["backdoor"] = backdoor
    return everything, splits
