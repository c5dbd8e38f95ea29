"""Residual networks."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, conv1x1, conv3x3

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.models.network import Network


class ResNet18(Network):
    """ResNet-18 for small images, as DePRL uses it: a 3x3 convolution of stride 1 first, no max-pooling.

    Paper: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv:1512.03385; DePRL,
    arXiv:2312.10815.

    Args:
        input_shape: Channels, height and width; at least 9 x 9.
        num_classes: Number of outputs.

    Raises:
        PflError: If the images are so small that BatchNorm in the last stage sees one pixel.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        self.check_images(input_shape, 9)  # 9 -> 5 -> 3 -> 2: a batch may be one image
        layers = {
            "conv1": conv3x3(input_shape[0], 64),
            "norm1": nn.BatchNorm2d(64),
            "relu1": nn.ReLU(),
            **residual_layers((64, 64, 128, 256, 512), 2, basic_block),
            "pool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(512, num_classes),
        }
        super().__init__(layers)


class WideResNet(Network):
    """Wide residual network WRN-depth-width with pre-activation blocks; FedMac has one for CINIC-10.

    The default size is our choice.

    Paper: Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016, arXiv:1605.07146; FedMac, arXiv:2107.05330.

    Args:
        input_shape: Channels, height and width; at least 5 x 5.
        num_classes: Number of outputs.
        depth: Number of convolutions, shortcuts included: 6 for each block of a stage, and 4.
        width: Factor on the channels 16, 32 and 64 of the three stages.

    Raises:
        PflError: If the depth is none of 10, 16, 22, ..., or the images are so small that BatchNorm sees one pixel.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, depth: PositiveInt = 16, width: PositiveInt = 2
    ) -> None:
        self.check_images(input_shape, 5)  # 5 -> 3 -> 2: a batch may be one image
        blocks, rest = divmod(depth - 4, 6)
        if blocks < 1 or rest:
            raise PflError(f"model.network.depth must be 10, 16, 22, 28, ..., got {depth}")
        layers = {
            "conv1": conv3x3(input_shape[0], 16),
            **residual_layers((16, 16 * width, 32 * width, 64 * width), blocks, PreActivationBlock),
            "norm1": nn.BatchNorm2d(64 * width),
            "relu1": nn.ReLU(),
            "pool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(64 * width, num_classes),
        }
        super().__init__(layers)


def basic_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""
    shortcut = None
    if inputs != outputs or stride != 1:
        shortcut = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
    block: nn.Module = BasicBlock(inputs, outputs, stride, shortcut)
    return block


def residual_layers(
    channels: Sequence[int], blocks: int, block: Callable[[int, int, int], nn.Module]
) -> dict[str, nn.Module]:
    """Stages of residual blocks; every stage but the first halves the image in its first block.

    Args:
        channels: Channels before the first stage, then those after each stage.
        blocks: Number of blocks in a stage.
        block: Makes a block from its input channels, output channels and stride.
    """
    layers = {}
    for stage, (inputs, outputs) in enumerate(pairwise(channels), start=1):
        layers[f"block{stage}_1"] = block(inputs, outputs, 1 if stage == 1 else 2)
        for number in range(2, blocks + 1):
            layers[f"block{stage}_{number}"] = block(outputs, outputs, 1)
    return layers


class PreActivationBlock(nn.Module):
    """BatchNorm, ReLU and 3x3 convolution, twice, with a shortcut.

    Where the number of channels changes, as with every stride of 2, the shortcut is a 1x1 convolution of the first
    ReLU's output.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        stride: Stride of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.shortcut = None if inputs == outputs else conv1x1(inputs, outputs, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Images ``[batch, inputs, height, width]`` to ``[batch, outputs, height / stride, width / stride]``."""
        active = self.norm1(inputs).relu()
        residual: Tensor = self.conv2(self.norm2(self.conv1(active)).relu())
        return residual + (inputs if self.shortcut is None else self.shortcut(active))
