"""Networks of linear layers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log, prod

import torch
from torch import Tensor, nn

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.models.network import Network, num_outputs


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
                "head": nn.Linear(rank, num_outputs(num_classes), bias=False),
            }
        )


class ProportionalHazards(Network):
    """A risk, linear in the input and the same in all bins of time, and a baseline for each bin: discrete-time Cox.

    The output of bin b is risk + baseline of b, the logit of the hazard (see ``Survival``). The head is the baseline.
    Risks begin at 0, and all hazards at 1 / bins.

    Paper: Andreux et al., "Federated Survival Analysis with Discrete-Time Cox Models", 2020, arXiv:2006.08997.

    Args:
        input_shape: Shape of one input; it is flattened.
        num_classes: Number of bins.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        risk = nn.Linear(prod(input_shape), 1, bias=False)
        nn.init.zeros_(risk.weight)
        super().__init__({"flatten": nn.Flatten(), "risk": risk, "baseline": Baseline(num_classes)})


class Baseline(nn.Module):
    """Adds a number for each bin.

    Args:
        bins: Number of bins.
    """

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((bins,), -log(max(bins - 1, 1))))

    def forward(self, risks: Tensor) -> Tensor:
        """Outputs ``[batch, bins]`` of risks ``[batch, 1]``."""
        return risks + self.bias


class LogisticRegression(Network):
    """Multinomial logistic regression: one linear layer; FedMac's MLR (Liu et al. 2023, arXiv:2107.05330).

    Args:
        input_shape: Shape of one input; it is flattened.
        num_classes: Number of classes; two classes need only one output.
        bias: Use a bias. Without it the weights start at zero, as in Delta-FL's linear models (arXiv:2002.11223).
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, bias: bool = True) -> None:
        layer = nn.Linear(prod(input_shape), num_outputs(num_classes), bias=bias)
        if not bias:
            nn.init.zeros_(layer.weight)
        super().__init__({"flatten": nn.Flatten(), "fc": layer})


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
            raise PflError(f"model.network: {type(self).__name__} takes {allowed}, got {len(dropouts)}")
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
