from collections import OrderedDict
from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor, nn
from torchvision.models.resnet import conv3x3

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.models.network import Network


class UNet(Network):
    """U-Net, which gives each pixel of an image its class; small by default.

    Each level has two 3x3 convolutions on the way down and two on the way up, each with GroupNorm and ReLU. A level
    lies below another by 2x2 max-pooling, and what it finds goes up by a 2x2 up-convolution and is joined with what the
    upper level found on the way down. The head is a 1x1 convolution.

    Paper: Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015,
    arXiv:1505.04597; GroupNorm: Wu and He, "Group Normalization", ECCV 2018, arXiv:1803.08494.

    Differs: the paper's convolutions are not padded, so that its masks are smaller than its images, and have biases in
    place of GroupNorm, which is of a sample alone.

    Args:
        input_shape: Channels, height and width.
        num_classes: Number of classes of a pixel.
        channels: Channels of the levels, the upper one first; the paper has 64, 128, 256, 512 and 1024.

    Raises:
        PflError: If the images are too small to be halved at each level.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, channels: Sequence[PositiveInt] = (8, 16, 32)
    ) -> None:
        self.check_images(input_shape, 2 ** (len(channels) - 1))
        super().__init__({**levels(input_shape[0], channels), "head": nn.Conv2d(channels[0], num_classes, 1)})


def levels(inputs: int, channels: Sequence[int]) -> dict[str, nn.Module]:
    """A level of a U-Net with all those below it, and the convolutions of its way up.

    Args:
        inputs: Channels of the input.
        channels: Channels of this level and of those below it.
    """
    width, *below = channels
    if not below:
        return {"bottom": convolutions(inputs, width)}
    return {"levels": Level(inputs, width, below), "decoder": convolutions(2 * width, width)}


class Level(nn.Module):
    """What a level finds on its way down, beside what comes up from those below it.

    Args:
        inputs: Channels of the input.
        width: Channels of this level.
        below: Channels of the levels below it.
    """

    def __init__(self, inputs: int, width: int, below: Sequence[int]) -> None:
        super().__init__()
        self.encoder = convolutions(inputs, width)
        self.pool = nn.MaxPool2d(2)
        self.below = nn.Sequential(OrderedDict(levels(width, below)))
        self.up = nn.ConvTranspose2d(below[0], width, 2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[batch, inputs, height, width]`` to ``[batch, 2 * channels, height, width]``."""
        encoded = self.encoder(images)
        raised = self.up(self.below(self.pool(encoded)), output_size=encoded.shape[2:])  # of odd sizes, too
        return torch.cat([encoded, raised], 1)


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two padded 3x3 convolutions, each with GroupNorm of up to four groups and ReLU."""
    groups = gcd(outputs, 4)
    return nn.Sequential(
        conv3x3(inputs, outputs),
        nn.GroupNorm(groups, outputs),
        nn.ReLU(),
        conv3x3(outputs, outputs),
        nn.GroupNorm(groups, outputs),
        nn.ReLU(),
    )
