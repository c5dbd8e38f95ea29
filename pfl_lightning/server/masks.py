"""Pairwise masks: random words that cancel in the sum over all clients."""

from math import ceil, log2

import torch
from torch import Tensor

from pfl_lightning.seeding import Key, permutations, random_words
from pfl_lightning.tree import Tree

CPU_BLOCK = 1 << 14  # words drawn at once on a CPU: they fit in its cache, and are too few for other threads to start
DEVICE_BLOCK = 1 << 24  # on an accelerator


class Masks:
    """Masks for one sum: each participant shares seeds with its neighbours on a ring in random order.

    One of two neighbours adds the random words of their seed, the other subtracts them, modulo 2^64. An upload looks
    uniformly random to a server that lacks even one of the seeds that the client shares with its neighbours, of whom
    it has about log2(participants) (docs/evidence/derivations.md, Secure sums).

    Paper: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, for
    pairwise masks; Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, for
    few neighbours.

    Args:
        ids: Participants, two or more, ``[participants]``.
        key: Key of the order on the ring and of the seeds.
    """

    def __init__(self, ids: Tensor, key: Key) -> None:
        size = len(ids)
        order = permutations((*key, "ring"), torch.zeros(1, dtype=torch.int64), torch.tensor([size]), size)[0]
        self.key = key
        self.ring = ids[order]
        reach = torch.arange(1, ceil(log2(size) / 2) + 1)
        self.ahead = (torch.arange(size)[:, None] + reach) % size  # neighbours ahead of each place, [places, reach]

    def hide(self, ids: Tensor, words: Tree) -> Tree:
        """Add the masks of some clients to the sum of their words.

        Masks that two of these clients share cancel, so they are not drawn.

        Args:
            ids: The clients, ``[clients]``.
            words: Sums of their words, ``[...]``.
        """
        chosen = torch.isin(self.ring, ids)
        behind = chosen[:, None]
        ahead = chosen[self.ahead]
        device = next(iter(words.values())).device
        added, subtracted = (edges.flatten().nonzero()[:, 0].to(device) for edges in (behind & ~ahead, ~behind & ahead))
        return {
            name: tensor + (self._stream(name, added, tensor) - self._stream(name, subtracted, tensor))
            for name, tensor in words.items()
        }

    def _stream(self, name: str, seeds: Tensor, like: Tensor) -> Tensor:
        """Sum of the random words of some seeds, in the shape of a tensor."""
        total = torch.zeros(like.numel(), dtype=torch.int64, device=like.device)
        block = CPU_BLOCK if like.device.type == "cpu" else DEVICE_BLOCK
        width = max(1, block // max(1, len(seeds)))
        for first in range(0, like.numel(), width):
            part = total[first : first + width]
            part += random_words((*self.key, "mask", name), seeds, len(part), first).sum(0)
        return total.view(like.shape)
