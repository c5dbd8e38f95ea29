from math import prod

from torch import nn

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.models.network import Network, outputs


class LinearNetwork(Network):
    """A linear representation and a linear head, without biases: the network of SRPFL's Algorithm 2.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078.

    Args:
        input_shape: Shape of one input; it is flattened.
        num_classes: Number of classes; two classes need only one output. 1 for a regression.
        rank: Width of the representation, k.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, rank: PositiveInt = 2) -> None:
        super().__init__(
            {
                "flatten": nn.Flatten(),
                "body": nn.Linear(prod(input_shape), rank, bias=False),
                "head": nn.Linear(rank, outputs(num_classes), bias=False),
            }
        )
