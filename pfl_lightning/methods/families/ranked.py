from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checks import Need
from pfl_lightning.methods.families.nested import Nested
from pfl_lightning.models import adapted_layers, both_factors
from pfl_lightning.tree import Tree, movable, select
from pfl_lightning.uplink import bits_of_entries

Adapters = dict[str, tuple[Tensor, Tensor]]  # A and B by the path of their layer


class Ranked(Nested):
    """Clients train adapters of unequal ranks: the first rows of A and columns of B in one network with the largest.

    All of them count alpha / rank of the whole adapter, whatever the client's rank. The head is the same for all.

    Args:
        ranks: Ranks of the clients' adapters; client i has number i modulo their number. Default: that of ``adapter``.
        kwargs: Options of the other bases; the default ``adapter`` is ``LoRA`` with its own defaults.

    Attributes:
        full_rank: The rank of the whole adapter.

    Raises:
        PflError: If a rank is larger than that of the adapter, or there is none, or A does not train.
    """

    needs: ClassVar[tuple[Need, ...]] = ("rounds",)

    def __init__(self, *, ranks: Sequence[PositiveInt] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.adapter = both_factors(self.adapter, type(self).__name__)
        self.full_rank = self.adapter.rank
        self.ranks = [self.full_rank] if ranks is None else ranks
        if not self.ranks or max(self.ranks) > self.full_rank:
            allowed = f"numbers from 1 to {self.full_rank}, the rank of model.adapter"
            raise PflError(f"model.ranks must be {allowed}, got {ranks}")

    @property
    def layers(self) -> list[str]:
        """Paths of the layers that are adapted."""
        return adapted_layers(self.parts["all"])

    def corners_of(self, ranks: Sequence[int]) -> list[dict[str, tuple[int, ...]]]:
        """What clients of these ranks hold; see ``Nested.corners``."""
        corners = []
        for rank in ranks:
            corner = {name: tuple(tensor.shape) for name, tensor in movable(self.network).items()}
            for path in self.layers:
                corner[f"{path}.lora_A"] = (rank, corner[f"{path}.lora_A"][1])
                corner[f"{path}.lora_B"] = (corner[f"{path}.lora_B"][0], rank)
            corners.append(corner)
        return corners

    def adapters(self, tensors: Tree) -> Adapters:
        """A and B of each adapted layer among some tensors, by its path."""
        return {path: (tensors[f"{path}.lora_A"], tensors[f"{path}.lora_B"]) for path in self.layers}

    def bits_of_adapters(self, kinds: Tensor, rows: Tree) -> Tree:
        """Bits of the adapters of clients of these kinds, by the names of their tensors, ``[clients]`` each."""
        names = self.parts["*lora_*"]
        return {name: bits_of_entries(mask, rows[name]) for name, mask in select(self.masks(kinds), names).items()}
