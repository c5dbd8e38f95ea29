from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.client import Examples, Masked, Phase
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.families.averaging import Aggregated, SharedStatistics
from pfl_lightning.models import Part, in_corner
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, movable, select

MASK = "mask"  # prefix of where clients hold the network


class Nested(Aggregated, SharedStatistics):
    """Clients train a corner of each tensor of one network, its first entries along every axis; all others are 0.

    Clients of one kind hold the same corners. They are evaluated with the server's network (``global``), and with what
    they hold of it (``personal``). Models are not pruned.

    Attributes:
        corners: What clients of each kind hold: shapes by the names of the tensors.
    """

    prunes = False
    uploads_models = False  # but parts of them
    eval_models = ("global", "personal")
    corners: Sequence[Mapping[str, tuple[int, ...]]]

    def kinds(self, ids: Tensor) -> Tensor:
        """The kinds of some clients, ``[clients]``."""
        return ids % len(self.corners)

    def masks(self, kinds: Tensor) -> Tree:
        """Where clients of these kinds hold the tensors of the network, ``[clients, ...]`` each."""
        masks = {}
        for name, tensor in movable(self.network).items():
            shapes = torch.tensor([corner[name] for corner in self.corners], dtype=torch.int64, device=kinds.device)
            masks[name] = in_corner(shapes[kinds], tensor)
        return masks

    def corner(self, received: Params, ids: Tensor) -> Params:
        """The masked models of some clients, with their masks (``mask.*``)."""
        masks = self.masks(self.kinds(ids))
        return received.with_own(Masked(MASK).onto(select(received.tree, masks), masks))

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train what each client holds."""
        return super().local_update(cohort, self.corner(received, cohort.ids), key)

    def phase(self, part: Part, *args: Any, **kwargs: Any) -> Phase:
        """See ``Method.phase``; all training is under the masks."""
        return replace(super().phase(part, *args, **kwargs), after_step=Masked(MASK))

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Each participant receives what it holds."""
        self.count_received(self.kinds(batch.participants), down)

    def count_received(self, kinds: Tensor, down: Traffic) -> None:
        """Count what participants of these kinds receive, ``[participants]``."""
        shared = select(movable(self.network), self.shared)
        counts = kinds.bincount(minlength=len(self.corners)).tolist()
        for corner, count in zip(self.corners, counts, strict=True):
            down.add({name: tensor.new_empty(corner[name]) for name, tensor in shared.items()}, count)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The global model, or what a client holds of it."""
        return self.corner(received, train.ids).select(self.parts["all"]) if model == "personal" else received
