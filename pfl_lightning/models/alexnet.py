from torch import nn

from pfl_lightning.models.mlp import linear_layers
from pfl_lightning.models.network import Network, check_images
from pfl_lightning.models.vgg import conv3x3_layers


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
        check_images(type(self).__name__, input_shape, 15)  # 15 -> 8 -> 4 -> 2 -> 1: the stride rounds up
        channels, height, width = input_shape
        features = 256 * ((height + 1) // 16) * ((width + 1) // 16)
        layers = {
            **conv3x3_layers(channels, (64, "M", 64, "M", 128, 128, 256, "M"), stride=2),
            "flatten": nn.Flatten(),
            **linear_layers([features, 512, 512, num_classes], {1: 0.2, 2: 0.2}, relus=5),
        }
        super().__init__(layers)
