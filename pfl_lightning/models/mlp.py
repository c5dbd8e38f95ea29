from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

from torch import nn

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.models.network import Network


class MLP(Network):
    """Fully connected layers with ReLU between them; the default widths are those of SRPFL (arXiv:2206.02078).

    DePRL's network for HARBox (arXiv:2312.10815, Table 6) is ``hidden: [512, 256, 128, 64]``,
    ``dropouts: [0.05, 0.05, 0.05]``.

    Args:
        input_shape: Shape of one input; it is flattened.
        num_classes: Number of outputs.
        hidden: Widths of the hidden layers.
        dropouts: Probability of dropping a unit after each hidden layer, from the first on; the others have no dropout.

    Raises:
        PflError: If there are more dropouts than hidden layers.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        hidden: Sequence[PositiveInt] = (512, 256, 64),
        dropouts: Sequence[ClosedUnitInterval] = (),
    ) -> None:
        if len(dropouts) > len(hidden):
            allowed = f"at most one dropout for each hidden layer ({len(hidden)})"
            raise PflError(f"model.network: {type(self).__name__} takes {allowed}; there are {len(dropouts)}")
        widths = [prod(input_shape), *hidden, num_classes]
        super().__init__({"flatten": nn.Flatten(), **linear_layers(widths, dict(enumerate(dropouts, start=2)))})


def linear_layers(widths: Sequence[int], dropouts: Mapping[int, float], relus: int = 0) -> dict[str, nn.Module]:
    """Linear layers with ReLU between them.

    Args:
        widths: Number of inputs, widths of the hidden layers, number of outputs.
        dropouts: Probability of dropping an input of a linear layer, by the layer's number; 0 makes no dropout layer.
        relus: Number of ReLUs in the network before these layers; their numbering continues from there.
    """
    layers: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        if number > 1:
            layers[f"relu{relus + number - 1}"] = nn.ReLU()
        if dropout := dropouts.get(number):
            layers[f"dropout{number}"] = nn.Dropout(dropout)
        layers[f"fc{number}"] = nn.Linear(inputs, outputs)
    return layers
