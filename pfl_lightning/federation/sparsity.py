from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat, Share
from pfl_lightning.client import SmoothL1
from pfl_lightning.errors import PflError
from pfl_lightning.metrics import density
from pfl_lightning.tree import Tree
from pfl_lightning.uplink.steps import Prune


@dataclass(frozen=True)
class Sparsity:
    """Sparse models: a penalty on the local loss, and pruning of the models that are sent.

    Density is the share of the entries that are not zero; the FedMac paper calls it sparsity.

    Paper: Liu et al., "Sparse Personalized Federated Learning" (FedMac), IEEE TNNLS 2023, arXiv:2107.05330.

    Args:
        weight: Weight of the smoothed L1 norm that is added to the local loss; 0 for none. The paper's gamma.
        smoothing: Width of the region around zero where the norm is rounded. The paper's rho.
        threshold: Entries up to this absolute value count as zero.
        prune: Set such entries to zero in what clients upload, and in the shared model after each round. The first
            model is sent as it is.
        min_density: Lowest density that is wanted.
        floor: How it is held: with ``gate`` there is no penalty in a round that starts with a shared model of at most
            this density, but pruning goes on; with ``topk`` pruning keeps at least the largest entries of every model;
            with ``off`` not at all. Where nothing is shared, the gate is always open.

    Raises:
        PflError: If ``topk`` is asked for without pruning.
    """

    weight: NonNegativeFloat = 0.0
    smoothing: PositiveFloat = 0.01
    threshold: PositiveFloat = 1e-3
    prune: bool = False
    min_density: Share = 0.5
    floor: Literal["gate", "topk", "off"] = "gate"

    def __post_init__(self) -> None:
        if self.floor == "topk" and not self.prune:
            raise PflError("model.sparsity.floor: topk is not possible without pruning; allowed: gate, off")

    @property
    def is_on(self) -> bool:
        """Whether models are made sparse at all."""
        return self.prune or self.weight > 0

    def penalty(self, shared: Mapping[str, Tensor]) -> SmoothL1 | None:
        """The penalty of a round, given the parameters of the shared model, of which there may be none."""
        gated = self.floor == "gate" and shared
        if not self.weight or (gated and density(shared.values(), self.threshold) <= self.min_density):
            return None
        return SmoothL1(self.weight, self.smoothing)

    @property
    def pruning(self) -> Prune | None:
        """The step that prunes what is sent; None if nothing does."""
        if not self.prune:
            return None
        return Prune(float(self.threshold), float(self.min_density) if self.floor == "topk" else 0.0)

    def prune_shared(self, shared: Tree) -> None:
        """Prune parameters of the shared model in place, ``[...]`` each, so that clients receive them like this."""
        if self.pruning is not None:
            for name, stack in self.pruning.pruned({name: tensor[None] for name, tensor in shared.items()}).items():
                shared[name].copy_(stack[0])
