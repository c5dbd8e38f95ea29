"""Clients with the same pictures and other names for them."""

import torch

from pfl_lightning.data import MNIST, LabelledData, NaturalUsers
from pfl_lightning.seeding import numpy_generator


class PermutedMNIST(MNIST):
    """MNIST, dealt out like cards to users, each of which has a random permutation of the classes."""

    usual_partition = NaturalUsers

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read both splits, and deal them out."""
        train, test = super().load()
        random = numpy_generator(self.partition_seed, "permuted")
        order = torch.from_numpy(random.permuted([range(10)] * self.num_clients, axis=1))
        return self._dealt(train, order), None if test is None else self._dealt(test, order)

    def _dealt(self, split: LabelledData, order: torch.Tensor) -> LabelledData:
        """A split with users, and its labels as these have them; ``order`` is ``[users, classes]``."""
        users = torch.arange(len(split.targets)) % len(order)
        return LabelledData(split.inputs, order[users, split.targets], users)
