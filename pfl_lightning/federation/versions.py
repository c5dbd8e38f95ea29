from collections.abc import Iterable

import torch
from torch import Tensor

from pfl_lightning.tree import Tree


class Versions:
    """What clients in flight have received from the server: one copy of each version that one of them began with.

    Attributes:
        kept: What the server sent after so many updates, ``[...]`` each.
    """

    def __init__(self) -> None:
        self.kept: dict[int, Tree] = {}

    def keep(self, held: Iterable[int], newest: int, sent: Tree) -> None:
        """Keep these versions alone, of which the newest is copied.

        Args:
            held: Versions with which clients in flight began.
            newest: The version that the server sends now.
            sent: What it sends, ``[...]`` each.
        """
        if newest in held:
            self.kept[newest] = {name: tensor.clone() for name, tensor in sent.items()}
        self.kept = {version: self.kept[version] for version in held}

    def rows(self, began: Tensor, newest: int, sent: Tree) -> Tree:
        """What clients received that began with these versions, ``[cohort]``: a row each, ``[cohort, ...]``."""
        versions = {**self.kept, newest: sent}
        found = [versions[version] for version in began.tolist()]
        return {name: torch.stack([each[name].to(tensor) for each in found]) for name, tensor in sent.items()}
