from typing import Any

import numpy as np

from pfl_lightning.bounds import Seed
from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.own.raw_data import Array, RawData
from pfl_lightning.seeding import numpy_generator

CLIENTS = 4
SAMPLES = 1000  # of each client for training, and of all clients for testing


class FCUBE(OfficialData):
    """FCUBE: points in a cube, of which each of four clients has one octant and its mirror through the centre.

    An input is a point ``[3]`` in [-1, 1]^3. The class is 0 where its first coordinate is positive and 1 where it is
    negative. A client has 500 training points in an octant of the first class, and 500 in the opposite one. The 1,000
    test points are uniform in the cube, and each belongs to the client that has its octant. Nothing is standardised.

    Paper: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022, arXiv:2102.02079.

    Args:
        generator_seed: Seed of the points.
        kwargs: See ``OfficialData``.
    """

    def __init__(self, generator_seed: Seed = 0, **kwargs: Any) -> None:
        super().__init__(standardize=False, **kwargs)
        self.generator_seed = generator_seed

    def read(self) -> tuple[RawData, RawData]:
        """Draw the points."""
        random = numpy_generator(self.generator_seed, "points")
        clients = np.arange(CLIENTS).repeat(SAMPLES)
        signs = np.stack([np.ones_like(clients), 1 - 2 * (clients // 2), 1 - 2 * (clients % 2)], 1)
        mirror = np.tile([1, -1], len(clients) // 2)[:, None]
        train = random.random(signs.shape) * signs * mirror
        return _labelled(train), _labelled(random.uniform(-1, 1, (SAMPLES, 3)))


def _labelled(points: Array) -> RawData:
    """Points with their classes and clients; a point and its mirror have the same client."""
    is_mirrored = points[:, 0] < 0
    turned = np.where(is_mirrored[:, None], -points, points)
    clients = 2 * (turned[:, 1] < 0) + (turned[:, 2] < 0)
    return RawData(points, is_mirrored.astype(np.int64), clients, ("positive", "negative"), "NF")
