from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from pfl_lightning.models.network import Network


class MLP(Network):
    """Fully connected layers with ReLU between them (SRPFL, section 7: hidden sizes 512, 256, 64).

    Args:
        input_shape: Shape of one input; it is flattened.
        num_classes: Number of outputs.
        hidden: Widths of the hidden layers.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: Sequence[int] = (512, 256, 64)) -> None:
        widths = [prod(input_shape), *hidden]
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            layers[f"fc{number}"] = nn.Linear(inputs, outputs)
            layers[f"relu{number}"] = nn.ReLU()
        layers[f"fc{len(widths)}"] = nn.Linear(widths[-1], num_classes)
        super().__init__(layers)
