from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checks import Need
from pfl_lightning.methods.families.averaging import Aggregated, Weighted
from pfl_lightning.seeding import seed_of
from pfl_lightning.tasks import Task
from pfl_lightning.tree import Params, Tree, assign, prefixed, select

MODELS = "models"  # prefix of the uploads for all models but the first
WEIGHTS = "weights"  # of all models


class SeveralModels(Weighted, Aggregated):
    """A server with several models, all of which the clients receive; the network is the first of them.

    The models begin with the same body, which can be pretrained, and with a random head each. In every round they
    become means of what clients upload for each, and the server also keeps the mean of the clients' weights of the
    models. Models are not pruned.

    Attributes:
        number: Number of models.
    """

    uploads = (MODELS, WEIGHTS)
    needs: ClassVar[tuple[Need, ...]] = ("rounds",)
    prunes = uploads_models = False
    number: int

    def build(
        self, input_shape: tuple[int, ...], task: Task, num_clients: int, seed: int = 0, *args: Any, **kwargs: Any
    ) -> None:
        """Make the models, once, each with another head; see ``Method.build``."""
        super().build(input_shape, task, num_clients, seed, *args, **kwargs)
        for number in range(1, self.number):
            for name, tensor in self._new_head(seed_of(seed, "group", number)).items():
                if name in self.shared:
                    self.server.tree[f"{number}.{name}"].copy_(tensor)

    def setup(self, stage: str) -> None:
        """Build the method; see ``Method.setup``.

        Raises:
            PflError: If the models are all the same, as those of a network that always begins with the same head.
        """
        super().setup(stage)
        first, *rest = (model.shared for model in self.models(Params(self.broadcast(), {})))
        if rest and all(torch.equal(first[name], model[name]) for model in rest for name in first):
            raise PflError(
                f"model.network: {self.network.kind} always begins with the same head, and so would all {self.number} "
                f"models of {type(self).__name__}; allowed: a head that begins at random"
            )

    def server_state(self, tensors: Tree) -> Tree:
        """All models but the first (``1.*`` and so on), and the weights of all in the last round."""
        model = select(tensors, self.shared)
        models = {name: t for number in range(1, self.number) for name, t in prefixed(str(number), model).items()}
        return {**models, WEIGHTS: F.one_hot(torch.tensor(0), self.number).to(next(self.network.parameters()))}

    def models(self, received: Params) -> list[Params]:
        """All models, each with what clients keep."""
        network = received.select(self.shared).shared
        models = [network, *({**network, **received.under(f"server.{n}").shared} for n in range(1, self.number))]
        return [Params(model, received.own) for model in models]

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Set every model to its mean."""
        self.server.tree[WEIGHTS].copy_(mean[WEIGHTS])
        for number in range(1, self.number):
            for name in self.shared:
                assign(self.server.tree[f"{number}.{name}"], mean[f"{MODELS}.{number}.{name}"])
        super().server_update(select(mean, self.shared), batch)

    def common_body(self) -> Tree:
        """The body of the model that had the most weight in the last round."""
        largest = int(self.server.tree[WEIGHTS].argmax())
        model = self.models(Params(self.broadcast(), {}))[largest].shared
        return select({**super().common_body(), **model}, self.parts["body"])


def uploaded(number: int, model: Tree) -> Tree:
    """A model of the given number as it is uploaded: the first one under the network's own names."""
    return prefixed(f"{MODELS}.{number}", model) if number else model
