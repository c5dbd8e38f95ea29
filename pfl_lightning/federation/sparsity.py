from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat, Share
from pfl_lightning.client import SmoothL1
from pfl_lightning.client.sparse_training import ROUNDING
from pfl_lightning.errors import PflError
from pfl_lightning.metrics import density
from pfl_lightning.tree import Tree, wide


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

    def pruned(self, models: Tree) -> Tree:
        """Models as they are sent.

        Args:
            models: Parameters of some models, ``[models, ...]`` each; not changed.
        """
        if not self.prune or not models:
            return models
        sizes = {name: stack.abs() for name, stack in models.items()}
        masks = {name: ~(size <= self.threshold) for name, size in sizes.items()}  # nan stays, to be seen
        if self.floor == "topk":
            entries = torch.cat([size.reshape(len(size), -1) for size in sizes.values()], 1)
            least = entries.topk(ceil(self.min_density * entries.shape[1] - ROUNDING), sorted=True).values[:, -1]
            masks = {name: masks[name] | (size >= wide(least, size)) for name, size in sizes.items()}
        return {name: stack.where(masks[name], 0) for name, stack in models.items()}  # a product could be -0.0

    def prune_shared(self, shared: Tree) -> None:
        """Prune parameters of the shared model in place, ``[...]`` each, so that clients receive them like this."""
        if self.prune:
            for name, stack in self.pruned({name: tensor[None] for name, tensor in shared.items()}).items():
                shared[name].copy_(stack[0])
