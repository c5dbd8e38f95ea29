from math import prod

from torch import nn

from pfl_lightning.models.network import Network, outputs


class LogisticRegression(Network):
    """Logistic regression: one linear layer (FedMac's MLR, section 11.5; 784 to 10 has 7,850 parameters).

    Args:
        input_shape: Shape of one input; it is flattened.
        num_classes: Number of classes; two of them have one output.
        bias: Whether there is a bias; Delta-FL's linear models have none and start at zero (section 11.2).
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, bias: bool = True) -> None:
        layer = nn.Linear(prod(input_shape), outputs(num_classes), bias=bias)
        if not bias:
            nn.init.zeros_(layer.weight)
        super().__init__({"flatten": nn.Flatten(), "fc": layer})
