from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import NonNegativeInt, PositiveInt
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.leaf import load_leaf
from pfl_lightning.data.labelled import LabelledData, check_classes, whole_numbers
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.transforms import ImageTransform

RECIPE = (
    "make them with github.com/TalwalkarLab/leaf, which downloads NIST's images itself: in its folder data/femnist run "
    "'./preprocess.sh -s niid --sf 1.0 -k 0 -t sample' (each writer's samples are split), or "
    "'./preprocess.sh -s niid --sf 1.0 -k 100 -t user --tf 0.5' (Delta-FL: the writers are split), "
    "and give that folder as data.root"
)


class FEMNIST(FederatedDataModule):
    """LEAF's FEMNIST: handwritten characters, 28 x 28 grey pixels; every user is a writer.

    The classes are the digits (0 to 9), upper case (10 to 35) and lower case (36 to 61). LEAF's own split of each
    writer's samples is used where there is one. Delta-FL's devices are disjoint: ``test_clients: 0.5``,
    ``NaturalUsers`` with ``min_samples: 101``. SRPFL's clients are not writers: ``classes: [36, 46]``,
    ``ConsecutiveClasses``, ``test_fraction: 0.1``.

    Paper: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, arXiv:1812.01097; used by Delta-FL,
    arXiv:2002.11223, and SRPFL, arXiv:2206.02078.

    Differs: Delta-FL computes the means of ``mean_ratio`` on training and test devices separately; here they are over
    all samples.

    Differs: SRPFL reads its letters from NIST's files, at most 4,000 a class, and its paper is 1; here they are LEAF's,
    and paper is 0 unless ``background`` is ``white``.

    Args:
        classes: Range of classes to use, from the first (inclusive) to the second (exclusive). Default: all 62.
        background: ``black`` makes paper 0 and ink 1, as in MNIST and EMNIST; ``white`` keeps LEAF's pixels, where
            paper is 1.
        normalize: ``none`` for pixels in [0, 1]; ``mean_ratio`` for pixel / mean - 1 with the mean of that pixel over
            all samples, as in Delta-FL's code.
        kwargs: See ``FederatedDataModule``.

    Raises:
        PflError: If there are no such classes.
    """

    num_classes = 62
    input_shape = (1, 28, 28)
    usual_partition = NaturalUsers

    def __init__(
        self,
        classes: tuple[NonNegativeInt, PositiveInt] | None = None,
        background: Literal["black", "white"] = "black",
        normalize: Literal["none", "mean_ratio"] = "none",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_classes(classes, FEMNIST.num_classes)
        self.classes = classes
        self.background = background
        self.normalize = normalize
        self._means: Tensor | None = None

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read LEAF's files.

        Raises:
            PflError: If they cannot be read, or are missing; it says how to make them.
        """
        parse = partial(encode, background=self.background)
        train, test = load_leaf(Path(self.root), RECIPE, parse, f"femnist-{self.background}", version=2)
        train = train.keep(self.classes)
        test = test.keep(self.classes) if test else None
        if self.normalize == "mean_ratio":
            self._means = pixel_means(train.join(test).inputs)
        return train, test

    def transform(self) -> ImageTransform:
        """Scale to [0, 1], and normalise by the means with ``mean_ratio``."""
        if self._means is None:
            return ImageTransform([0.0], [1.0])
        return ImageTransform(self._means, self._means)


def encode(inputs: list[Any], targets: list[Any], background: Literal["black", "white"]) -> tuple[Tensor, Tensor]:
    """Images and labels of LEAF's lists.

    Args:
        inputs: 784 pixels in [0, 1] for each sample, multiples of 1/255.
        targets: Classes.
        background: What the paper becomes, which is white in LEAF's files.

    Returns:
        Images, uint8 ``[samples, 1, 28, 28]``, 255 is white; and classes, ``[samples]``.

    Raises:
        ValueError: If there are not 784 pixels in [0, 1] and a whole number for each sample.
    """
    pixels = np.array(inputs, dtype=np.float64).reshape(len(targets), *FEMNIST.input_shape) * 255
    if not ((pixels >= 0) & (pixels <= 255)).all():
        raise ValueError("pixels are outside [0, 1]")
    images = torch.from_numpy(pixels.round().astype(np.uint8))
    return 255 - images if background == "black" else images, whole_numbers(targets)


def pixel_means(images: Tensor) -> Tensor:
    """Mean of every pixel.

    Args:
        images: uint8 ``[samples, channels, height, width]``.

    Returns:
        Means of pixels in [0, 1], ``[channels, height, width]``; at least 1/255, so that one can divide by them.
    """
    means = torch.from_numpy(images.numpy().mean(0))  # torch would convert all images at once
    return means.clamp_min(1) / 255
