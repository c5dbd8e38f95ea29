from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn
from torchvision.models.resnet import BasicBlock, conv1x1, conv3x3

from pfl_lightning.models.network import Network, check_images


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
        check_images(type(self).__name__, input_shape, 9)  # 9 -> 5 -> 3 -> 2: a batch may be one image
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
