from collections.abc import Sequence

from torch import nn

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.models.linear import linear_layers
from pfl_lightning.models.network import Network


class LeNet5(Network):
    """LeNet-5 as SRPFL uses it; the defaults are its CIFAR-10 network.

    Two unpadded 5x5 convolutions, each with ReLU and 2x2 max-pooling, then three linear layers. Its CIFAR-100 network
    is ``channels: [64, 128]``, ``hidden: [256, 128]``, ``dropout: 0.6`` (once, before the last layer).

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078. LeNet-5
    itself: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proceedings of the IEEE 1998.

    Args:
        input_shape: Channels, height and width; at least 16 x 16.
        num_classes: Number of outputs.
        channels: Output channels of the two convolutions.
        hidden: Widths of the two hidden linear layers.
        dropout: Probability of dropping a unit before the last layer.

    Raises:
        PflError: If the images are too small for two unpadded convolutions.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        channels: tuple[PositiveInt, PositiveInt] = (64, 64),
        hidden: tuple[PositiveInt, PositiveInt] = (120, 64),
        dropout: ClosedUnitInterval = 0.0,
    ) -> None:
        self.check_images(input_shape, 16)
        convolutions = conv_layers(input_shape[0], channels)
        linear = linear_layers([channels[1] * conv_pixels(input_shape), *hidden, num_classes], {3: dropout}, relus=2)
        super().__init__({**convolutions, **linear})


class ConvNet(Network):
    """LeNet's convolutions and linear layers; the defaults are Delta-FL's small network for EMNIST, with a single one.

    PFLlib's CNN (arXiv:2312.04992) is ``hidden: [512]``.

    Paper: Laguel et al., "Device Heterogeneity in Federated Learning: A Superquantile Approach", 2020,
    arXiv:2002.11223.

    Args:
        input_shape: Channels, height and width; at least 16 x 16.
        num_classes: Number of outputs.
        channels: Output channels of the two convolutions.
        hidden: Widths of hidden linear layers.

    Raises:
        PflError: If the images are too small for two unpadded convolutions.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        channels: tuple[PositiveInt, PositiveInt] = (32, 64),
        hidden: Sequence[PositiveInt] = (),
    ) -> None:
        self.check_images(input_shape, 16)
        # the initial weights of linear layers are drawn first here
        linear = linear_layers([channels[1] * conv_pixels(input_shape), *hidden, num_classes], {}, relus=2)
        super().__init__({**conv_layers(input_shape[0], channels), **linear})


def conv_layers(inputs: int, channels: tuple[int, int]) -> dict[str, nn.Module]:
    """Two unpadded 5x5 convolutions, each with 2x2 max-pooling and ReLU, flattened; ReLU is cheaper after pooling."""
    return {
        "conv1": nn.Conv2d(inputs, channels[0], 5),
        "pool1": nn.MaxPool2d(2),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(channels[0], channels[1], 5),
        "pool2": nn.MaxPool2d(2),
        "relu2": nn.ReLU(),
        "flatten": nn.Flatten(),
    }


def conv_pixels(input_shape: tuple[int, ...]) -> int:
    """Height times width after ``conv_layers``: each convolution takes 4 away, each pooling halves."""
    height, width = (((length - 4) // 2 - 4) // 2 for length in input_shape[1:])
    return height * width
