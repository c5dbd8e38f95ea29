"""A step of uploads and a vote of your own; see upload.md."""

from torch import Tensor

from pfl_lightning.seeding import random_bits
from pfl_lightning.server import Vote
from pfl_lightning.tree import Tree
from pfl_lightning.uplink import Attack, Senders


class UniformNoise(Attack):
    """Attackers send what they have trained plus noise, uniform on [-size, size]."""

    def __init__(self, share: float = 0.2, size: float = 1.0) -> None:
        super().__init__(share)
        self.size = size

    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """Add noise that depends on the round, the tensor and the client alone."""
        noisy = {}
        for name, stack in rows.items():
            bits = random_bits((*senders.key, "noise", name), senders.ids, stack[0].numel())
            noise = bits.double() * 2.0**-62 - 1
            noisy[name] = stack + self.size * noise.view(stack.shape).to(stack)
        return noisy


class MidRange(Vote):
    """Half-way between the smallest and the largest value of each entry."""

    def combine(self, rows: Tensor) -> Tensor:
        """Rows are ``[clients, entries]``."""
        return (rows.amin(0) + rows.amax(0)) / 2
