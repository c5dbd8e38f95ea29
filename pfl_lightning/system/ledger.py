from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

VALUE = 64  # bits of a number in the formula of FedMac's paper


@dataclass
class Ledger:
    """What the rounds have cost: the bits communicated, and the samples that clients have trained on.

    Not counted are the gradients that ``GradientDoubling`` asks clients for, and the moments from which
    ``LinearFedRep`` starts: both are sent outside of rounds. Nor is the loss, one number, that each client reports to
    ``DeltaFL`` for an exact quantile. Nor are samples that are seen outside of training, such as those whose losses a
    method compares first, or those that a function passed to the engine's ``each`` sees.

    Attributes:
        up: What all clients sent in the last round.
        down: What they received from the server in the last round.
        total: Sum of both over all rounds.
        paper: Sum of both over all rounds on the link of one client, the mean over the participants of each round; by
            the formula of FedMac's paper, which only counts parameters.
        samples: Samples that clients took gradients of, over all rounds; a sample counts again in each epoch.
    """

    up: int = 0
    down: int = 0
    total: int = 0
    paper: float = 0.0
    samples: int = 0

    def record(self, up: int, down: int, paper: float) -> None:
        """Record a round; see the attributes."""
        self.up = up
        self.down = down
        self.total += up + down
        self.paper += paper

    def scalars(self) -> dict[str, float]:
        """The entries under their names in TensorBoard and ``metrics.csv``."""
        bits = {f"bits/{name}": float(getattr(self, name)) for name in ("up", "down", "total", "paper")}
        return {**bits, "samples/total": float(self.samples)}


def dense_bits(entries: int) -> int:
    """Bits of a model with this many parameters, by the formula of FedMac's paper.

    Examples:
        >>> dense_bits(79510)  # layers of 784, 100 and 10
        5088640
    """
    return VALUE * entries


def sparse_bits(entries: int, values: int) -> int:
    """Bits of a pruned model of which ``values`` parameters are not zero, by the formula of FedMac's paper.

    A zero takes one bit, and every parameter takes another one that says whether it is zero. So a model without zeros
    takes more bits than a dense one.

    Paper: Liu et al., "Sparse Personalized Federated Learning" (FedMac), IEEE TNNLS 2023, arXiv:2107.05330.

    Examples:
        >>> sparse_bits(79510, 39755)
        2663585
        >>> sparse_bits(79510, 79510)
        5168150
    """
    return VALUE * values + (entries - values) + entries


def model_bits(models: Mapping[str, Tensor], pruned: bool) -> int:
    """Bits of some models by the formula of FedMac's paper; only those of pruned models depend on their values.

    Args:
        models: Their parameters, ``[models, ...]`` each.
        pruned: Whether they were pruned before they were sent.
    """
    entries = sum(stack.numel() for stack in models.values())
    if not pruned:
        return dense_bits(entries)
    return sparse_bits(entries, sum(int(stack.count_nonzero()) for stack in models.values()))
