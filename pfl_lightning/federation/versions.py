from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.tree import Params, Tree


class Versions:
    """What clients in flight have received from the server: one copy of each version that one of them began with.

    Attributes:
        trees: The tensors that the server sent after so many updates, ``[...]`` each.
    """

    ENTRY = "versions"  # of checkpoints

    def __init__(self) -> None:
        self.trees: dict[int, Tree] = {}

    def keep(self, held: Iterable[int], newest: int, sent: Tree) -> None:
        """Keep these versions alone, of which the newest is copied.

        Args:
            held: Versions with which clients in flight began.
            newest: The version that the server sends now.
            sent: What it sends, ``[...]`` each.
        """
        if newest in held:
            self.trees[newest] = {name: tensor.clone() for name, tensor in sent.items()}
        self.trees = {version: self.trees[version] for version in held}

    def received(self, began: Tensor, newest: int, received: Params) -> Params:
        """What clients received when they began with some versions, ``[cohort]``, given what those now receive.

        Each has a row of its own, so that all train at once; one version after another takes FedRep 1.5 times as long.
        """
        versions = {**self.trees, newest: received.shared}
        trees = [versions[version] for version in began.tolist()]
        rows = {name: torch.stack([tree[name].to(t) for tree in trees]) for name, t in received.shared.items()}
        return received.with_own(rows)

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Put the versions of clients in flight into a checkpoint."""
        if self.trees:
            checkpoint[self.ENTRY] = self.trees

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore what ``save`` put into a checkpoint."""
        self.trees = checkpoint.get(self.ENTRY, {})
