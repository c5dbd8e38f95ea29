from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_lightning.bounds import NonNegativeFloat, PositiveInt, Seed
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.partitions.dirichlet import Dirichlet
from pfl_lightning.data.transforms import ImageTransform
from pfl_lightning.seeding import numpy_generator
from pfl_lightning.tasks import Segmentation

Array = NDArray[np.float64]
SIDE = 16  # pixels
MOST = 3  # shapes in an image


class Shapes(FederatedDataModule):
    """Generated grey images of discs, squares and triangles, and for each pixel what it belongs to: a segmentation.

    An image of 16 x 16 pixels has one to three shapes, each of a random kind, place, size and brightness; later ones
    cover earlier ones. The classes of pixels are 0 for the background, 1 for discs, 2 for squares and 3 for triangles.
    Partitions see the kind with the most pixels of an image, so that each client has more of some kinds than of others.

    Args:
        samples: Number of images.
        noise: Standard deviation of the noise of each pixel; black is 0 and white is 1.
        generator_seed: Seed of the images.
        kwargs: See ``FederatedDataModule``.
    """

    num_classes = 4
    input_shape = (1, SIDE, SIDE)
    reads_samples = False
    usual_partition = Dirichlet

    def __init__(
        self, samples: PositiveInt = 2000, noise: NonNegativeFloat = 0.1, generator_seed: Seed = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.samples = samples
        self.noise = noise
        self.generator_seed = generator_seed

    def load(self) -> tuple[LabelledData, None]:
        """Draw the images."""
        random = numpy_generator(self.generator_seed, "shapes")
        each = (self.samples, 1, 1)
        images = np.zeros((self.samples, SIDE, SIDE))
        masks = np.zeros(images.shape, dtype=np.uint8)
        numbers = random.integers(1, MOST, each, endpoint=True)
        for number in range(MOST):
            kinds = random.integers(1, self.num_classes, each)
            size = random.uniform(2, 4, each)
            row, column = random.uniform(4, SIDE - 5, (2, *each))  # so that no shape is cut off
            rows = (np.arange(SIDE)[:, None] - row) / size
            columns = (np.arange(SIDE) - column) / size
            drawn = (number < numbers) & _inside(kinds, rows, columns)
            masks = np.where(drawn, kinds, masks)
            images = np.where(drawn, random.uniform(0.4, 1, each), images)
        images += self.noise * random.standard_normal(images.shape)
        pixels = torch.from_numpy(images).mul(255).clamp(0, 255).to(torch.uint8)
        return LabelledData(pixels[:, None], torch.from_numpy(masks.astype(np.uint8))), None

    @property
    def task(self) -> Segmentation:
        """A class for each pixel."""
        return Segmentation().sized(self.num_classes)

    def transform(self) -> ImageTransform:
        """Roughly centre and scale the grey values."""
        return ImageTransform(mean=[0.2], std=[0.3])


def _inside(kinds: NDArray[np.int64], rows: Array, columns: Array) -> NDArray[np.bool_]:
    """Whether pixels lie within shapes, ``[samples, height, width]``.

    Args:
        kinds: 1 for a disc, 2 for a square, 3 for a triangle that stands on its base, ``[samples, 1, 1]``.
        rows: Distances from the shape's centre downwards, in units of its size, ``[samples, height, 1]``.
        columns: Distances to the right, ``[samples, 1, width]``.
    """
    disc = rows**2 + columns**2 <= 1
    square = np.maximum(abs(rows), abs(columns)) <= 0.9
    triangle = (rows <= 0.9) & (2 * abs(columns) <= 1 + rows)
    return np.choose(kinds - 1, [disc, square, triangle])
