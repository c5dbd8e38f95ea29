from collections.abc import Iterable

import torch
from torch import Tensor

from pfl_lightning.tree import Tree


class Versions:
    """What clients in flight have received from the server: one copy of each version that one of them began with.

    Attributes:
        trees: The tensors that the server sent after so many updates, ``[...]`` each.
    """

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

    def rows(self, began: Tensor, newest: int, sent: Tree) -> Tree:
        """A row for each client, ``[cohort, ...]``, of the version that it began with, ``[cohort]``."""
        versions = {**self.trees, newest: sent}
        received = [versions[version] for version in began.tolist()]
        return {name: torch.stack([tree[name].to(tensor) for tree in received]) for name, tensor in sent.items()}
