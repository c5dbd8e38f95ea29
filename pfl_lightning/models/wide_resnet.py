from torch import Tensor, nn
from torchvision.models.resnet import conv1x1, conv3x3

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.models.network import Network, check_images
from pfl_lightning.models.resnet import residual_layers


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
        network = type(self).__name__
        check_images(network, input_shape, 5)  # 5 -> 3 -> 2: a batch may be one image
        blocks, rest = divmod(depth - 4, 6)
        if blocks < 1 or rest:
            raise PflError(f"model.network: {network} of depth {depth} is not possible; allowed: 10, 16, 22, 28, ...")
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
