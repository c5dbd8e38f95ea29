from typing import Any, Literal

import torch
from torch import Tensor

from pfl_lightning.bounds import PositiveFloat, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tree import Params, Tree


class HeadThenBody(FineTuned):
    """Clients train the head for some epochs, and then the body.

    Args:
        head_epochs: Epochs on the head before those on the body.
        body_epochs: Epochs on the body before the next ones on the head.
        head_lr: Learning rate of the head, also before an evaluation. Default: ``lr``.
        head_init: The clients' first heads: ``common``, that of the network, or ``random``, another one for each.
        kwargs: Options of the other bases.
    """

    usual_momentum = 0.5

    def __init__(
        self,
        *,
        head_epochs: PositiveInt = 10,
        body_epochs: PositiveInt = 1,
        head_lr: PositiveFloat | None = None,
        head_init: Literal["common", "random"] = "common",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.head_epochs = head_epochs
        self.body_epochs = body_epochs
        self.head_lr = head_lr
        self.head_init = head_init

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """What clients keep before they have taken part, with their own first heads if these are ``random``."""
        state = super().initial_state(tensors, num_clients, seed)
        if self.head_init == "random":
            heads = [self._new_head(seed_of(seed, "head", client)) for client in range(num_clients)]
            state |= {name: torch.stack([head[name] for head in heads]) for name in self.parts["head"]}
        return state

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Alternate between the head and the body."""
        head = self.phase("head", self.head_epochs, self.head_lr)
        body = self.phase("body", self.body_epochs)
        params = received
        for repetition in range(self.local.epochs):
            params, _ = self.engine.train(cohort, params, head, (*key, "head", repetition))
            params, losses = self.engine.train(cohort, params, body, (*key, "body", repetition))
        return params, losses
