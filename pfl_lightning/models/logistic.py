from math import prod

from torch import nn

from pfl_lightning.models.network import Network, outputs


class LogisticRegression(Network):
    """Multinomial logistic regression: one linear layer; FedMac's MLR (Liu et al. 2023, arXiv:2107.05330).

    Args:
        input_shape: Shape of one input; it is flattened.
        num_classes: Number of classes; two classes need only one output.
        bias: Use a bias. Without it the weights start at zero, as in Delta-FL's linear models (arXiv:2002.11223).
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, bias: bool = True) -> None:
        layer = nn.Linear(prod(input_shape), outputs(num_classes), bias=bias)
        if not bias:
            nn.init.zeros_(layer.weight)
        super().__init__({"flatten": nn.Flatten(), "fc": layer})
