"""Networks of padded 3x3 convolutions and linear layers."""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.models.linear import linear_layers
from pfl_lightning.models.network import Network

Convolutions = Sequence[PositiveInt | Literal["M"]]


class VGG(Network):
    """VGG: padded 3x3 convolutions with ReLU, 2x2 max-pooling, then linear layers; the defaults are DePRL's VGG-11.

    There is dropout before the first and the last linear layer. The convolutions start from
    N(0, 2 / (9 * output channels)) and zero bias. FedMac's network (arXiv:2107.05330) is
    ``convolutions: [16, M, 32, M, 64, M, 128, M, 128, M]``, ``dropout: 0``, ``batch_norm: true``, with the
    linear layers of pFedMe's code (arXiv:2006.08848). LEAF's network for CelebA (arXiv:1812.01097) is
    ``convolutions: [32, M, 32, M, 32, M, 32, M]``, ``hidden: []``, ``dropout: 0``, ``batch_norm: true``.

    Paper: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015,
    arXiv:1409.1556; DePRL, arXiv:2312.10815.

    Differs: DePRL's Table 4 lists other convolutions (``configs/models/vgg11-table4.yaml``); these are the usual ones,
    and those of the authors' code.

    Args:
        input_shape: Channels, height and width; at least 2 pixels to the power of the number of poolings.
        num_classes: Number of outputs.
        convolutions: Output channels of each convolution, and M where there is max-pooling.
        hidden: Widths of the hidden linear layers.
        dropout: Probability of dropping a unit before the first and before the last linear layer.
        batch_norm: Whether BatchNorm follows each convolution.

    Raises:
        PflError: If the images are too small for the poolings.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        convolutions: Convolutions = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
        hidden: Sequence[PositiveInt] = (512, 512),
        dropout: ClosedUnitInterval = 0.2,
        batch_norm: bool = False,
    ) -> None:
        shrinkage = 2 ** list(convolutions).count("M")
        self.check_images(input_shape, shrinkage)
        channels = [input_shape[0], *(entry for entry in convolutions if entry != "M")]
        features = channels[-1] * (input_shape[1] // shrinkage) * (input_shape[2] // shrinkage)
        layers = {
            **conv3x3_layers(input_shape[0], convolutions, batch_norm=batch_norm),
            "flatten": nn.Flatten(),
            **linear_layers(
                [features, *hidden, num_classes], {1: dropout, len(hidden) + 1: dropout}, relus=len(channels) - 1
            ),
        }
        super().__init__(layers)
        for layer in self:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)


class AlexNet(Network):
    """AlexNet as DePRL uses it for Fashion-MNIST: five padded 3x3 convolutions and three linear layers.

    The first convolution has stride 2; 2x2 max-pooling follows the first, second and last. There is dropout before the
    first two linear layers. That the first kernel is 3x3 is our reading, which fits the features in the table.

    Paper: Xiong et al., "DePRL: Achieving Linear Convergence Speedup in Personalized Decentralized Learning with Shared
    Representations", AAAI 2024, arXiv:2312.10815, Table 5.

    Args:
        input_shape: Channels, height and width; at least 15 x 15.
        num_classes: Number of outputs.

    Raises:
        PflError: If the images are too small for the stride and three poolings.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        self.check_images(input_shape, 15)  # 15 -> 8 -> 4 -> 2 -> 1: the stride rounds up
        channels, height, width = input_shape
        features = 256 * ((height + 1) // 16) * ((width + 1) // 16)
        layers = {
            **conv3x3_layers(channels, (64, "M", 64, "M", 128, 128, 256, "M"), stride=2),
            "flatten": nn.Flatten(),
            **linear_layers([features, 512, 512, num_classes], {1: 0.2, 2: 0.2}, relus=5),
        }
        super().__init__(layers)


def conv3x3_layers(
    inputs: int, convolutions: Convolutions, stride: int = 1, batch_norm: bool = False
) -> dict[str, nn.Module]:
    """Padded 3x3 convolutions (``stride`` is the first one's), each with ReLU; 2x2 max-pooling where an entry is M."""
    layers: dict[str, nn.Module] = {}
    convs = pools = 0
    for entry in convolutions:
        if entry == "M":
            pools += 1
            relu = [layers.popitem()] if convs else []  # after the pooling, the same result costs less
            layers.update({f"pool{pools}": nn.MaxPool2d(2), **dict(relu)})
            continue
        convs += 1
        layers[f"conv{convs}"] = nn.Conv2d(inputs, entry, 3, stride if convs == 1 else 1, padding=1)
        if batch_norm:
            layers[f"norm{convs}"] = nn.BatchNorm2d(entry)
        layers[f"relu{convs}"] = nn.ReLU()
        inputs = entry
    return layers
