"""Feature skew: how the pictures of each client differ from those of others, whatever the partition."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, OpenUnitInterval, PositiveInt
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.seeding import Key, seed_of

RIGHT_ANGLE = 90
WIDTH = 3  # of a blur's kernel on each side, in its standard deviations


class Skew(ABC):
    """Changes the pictures of each client in a way of its own, those for training and for testing alike, and once.

    The scaling of pixels stays that of the unchanged data set. New clients count from 0, too, with draws of their own.

    Attributes:
        moves_pixels: Whether pixels change their places, and so leave masks behind.
        keeps_range: Whether pixels stay in [0, 1]; then they are rounded to 256 levels again.
    """

    moves_pixels: ClassVar[bool] = False
    keeps_range: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, pictures: Tensor, client: int, clients: int, random: torch.Generator) -> Tensor:
        """The changed pictures of a client.

        Args:
            pictures: Pixels in [0, 1], ``[samples, channels, height, width]``.
            client: Number of the client, from 0.
            clients: Number of clients.
            random: The client's source of randomness.

        Returns:
            Pixels, as ``pictures``.
        """


class Rotation(Skew):
    """Client i sees all pictures turned by 360 i / groups degrees: with 4 groups by right angles.

    Paper: Ghosh, Chung, Yin, Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
    arXiv:2006.04088, Rotated MNIST (``groups=4``).

    Args:
        groups: Number of angles; clients take turns.
    """

    moves_pixels = True

    def __init__(self, groups: PositiveInt = 4) -> None:
        self.groups = groups

    def __call__(self, pictures: Tensor, client: int, clients: int, random: torch.Generator) -> Tensor:
        """See ``Skew``; turned counterclockwise, with black corners."""
        angle = 360 * (client % self.groups) / self.groups
        if angle % RIGHT_ANGLE == 0 and pictures.shape[-1] == pictures.shape[-2]:
            return pictures.rot90(int(angle // RIGHT_ANGLE), (-2, -1))
        from torchvision.transforms.v2 import InterpolationMode, functional

        turned: Tensor = functional.rotate(pictures, angle, InterpolationMode.BILINEAR)
        return turned.clamp(0, 1)


class Noise(Skew):
    """Client i of n has Gaussian noise with the standard deviation ``deviation`` i / (n - 1) on all pictures.

    Paper: Li, Diao, Chen, He, Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022,
    arXiv:2102.02079, feature distribution skew by noise (``deviation=0.1``).

    Differs: the paper calls the number a variance, its code takes it for a standard deviation, as here; the code draws
    new noise at each access, and tests on noisy copies of all test samples for each client.

    Args:
        deviation: That of the last client, for pixels in [0, 1].
    """

    keeps_range = False

    def __init__(self, deviation: NonNegativeFloat = 0.1) -> None:
        self.deviation = deviation

    def __call__(self, pictures: Tensor, client: int, clients: int, random: torch.Generator) -> Tensor:
        """See ``Skew``; a sample has the same noise in each epoch."""
        noise = torch.randn(pictures.shape, generator=random)
        return pictures + noise * _level(self.deviation, client, clients)


class Colour(Skew):
    """Each client's camera has its own colours: every channel is multiplied by a gain, and cut off at white.

    Grey pictures get a gamma instead: pixels to the power of the gain.

    Args:
        spread: Gains are uniform from 1 - spread to 1 + spread.
    """

    def __init__(self, spread: OpenUnitInterval = 0.5) -> None:
        self.spread = spread

    def __call__(self, pictures: Tensor, client: int, clients: int, random: torch.Generator) -> Tensor:
        """See ``Skew``."""
        channels = pictures.shape[1]
        gains = 1 + self.spread * (2 * torch.rand(channels, 1, 1, generator=random) - 1)
        return pictures.pow(gains) if channels == 1 else (pictures * gains).clamp(max=1)


class Blur(Skew):
    """Client i of n sees pictures through a Gaussian blur with the standard deviation ``deviation`` i / (n - 1).

    Args:
        deviation: That of the last client, in pixels.
    """

    def __init__(self, deviation: NonNegativeFloat = 1.0) -> None:
        self.deviation = deviation

    def __call__(self, pictures: Tensor, client: int, clients: int, random: torch.Generator) -> Tensor:
        """See ``Skew``."""
        deviation = _level(self.deviation, client, clients)
        radius = min(ceil(WIDTH * deviation), min(pictures.shape[-2:]) - 1)
        if radius == 0:
            return pictures
        from torchvision.transforms.v2 import functional

        blurred: Tensor = functional.gaussian_blur(pictures, [2 * radius + 1] * 2, [deviation] * 2)
        return blurred


def _level(most: float, client: int, clients: int) -> float:
    """From 0 for the first client to ``most`` for the last one."""
    return most * client / max(clients - 1, 1)


def skewed(inputs: Tensor, holdings: Iterable[Parts], skew: Skew, key: Key) -> Tensor:
    """The pictures of a data set as its clients see them.

    Args:
        inputs: uint8, ``[samples, channels, height, width]``.
        holdings: The samples of each client in each split.
        skew: Changes them.
        key: Key of the clients' sources of randomness.

    Returns:
        uint8 again, or float32 from 0 to 255 and beyond if the skew does not keep the range of pixels.
    """
    result = inputs.clone() if skew.keeps_range else inputs.float()
    clients = [torch.from_numpy(np.sort(np.concatenate(parts))) for parts in zip(*holdings, strict=True)]
    for client, rows in enumerate(clients):
        random = torch.Generator().manual_seed(seed_of(*key, client))
        pixels = skew(inputs[rows].float() / 255, client, len(clients), random) * 255
        result[rows] = pixels.round().to(torch.uint8) if skew.keeps_range else pixels
    return result
