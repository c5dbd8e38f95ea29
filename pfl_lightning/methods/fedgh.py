from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from pfl_lightning.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.federation.client_states import all_rows
from pfl_lightning.methods.families.prototypes import class_sums
from pfl_lightning.methods.method import Method
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tree import Params, Tree, repeated

# of each client, in the last round that it took part in: mean features by class, and which classes it has
MEANS = "means"
PRESENT = "present"


class FedGH(Method):
    """Clients keep their bodies, and the server trains one head for all on their mean features of each class.

    Rule of a round; P_ic are the mean features of client i's samples of class c by its trained body:

        body_i, head_i = SGD for epochs on f_i, from body_i, head
        keep body_i, upload P_ic
        head = SGD for server_epochs on cross-entropy(head(P_ic), c) over all uploaded P_ic

    The server draws mini-batches at random. Nobody uploads a head. Clients are evaluated with their own bodies and the server's head (``stored``).

    Paper: Yi, Wang, Liu, Shi, Yu, FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM
    Multimedia 2023, arXiv:2303.13137, Algorithm 1.

    Differs: in the authors' code the optimizer of the last client steps in place of the server's, so that their head
    never moves.

    Args:
        server_lr: Learning rate of the head at the server.
        server_epochs: Epochs over the uploads; with 0 the head stays as it was at first.
        server_batch: Uploads in a mini-batch.
        kwargs: Options of the bases.
    """

    keeps: Part = "body"
    needs = ("classes", "features")
    prunes = False

    def __init__(
        self,
        server_lr: PositiveFloat = 0.01,
        server_epochs: NonNegativeInt = 1,
        server_batch: PositiveInt = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.server_lr = server_lr
        self.server_epochs = server_epochs
        self.server_batch = server_batch

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Each client's body, and no features yet."""
        weight = tensors[f"{self.network.linear_head(self.parts['head'], alone=True)}.weight"]
        means = weight.new_zeros(self.task.classes, weight.shape[1])
        own = repeated({MEANS: means, PRESENT: means[:, 0]}, num_clients)
        return {**super().initial_state(tensors, num_clients, seed), **own}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train body and head, and compute mean features; the head is not uploaded."""
        trained, losses = super().local_update(cohort, received, key)
        sums = class_sums(self, cohort, trained)
        return trained.without(self.parts["head"]).with_own({MEANS: sums.means, PRESENT: sums.present}), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Train the head."""
        features, classes = self.uploaded(batch)
        path = self.network.linear_head(self.parts["head"], alone=True)
        head = self.network.get_submodule(path)
        optimizer = SGD(head.parameters(), lr=float(self.server_lr))
        for epoch in range(self.server_epochs):
            source = torch.Generator().manual_seed(seed_of(batch.seed, "head", batch.round_index, epoch))
            order = torch.randperm(len(classes), generator=source).to(classes.device)
            for places in order.split(self.server_batch):
                with torch.enable_grad():
                    loss = self.sample_losses(head(features[places]), classes[places]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def uploaded(self, batch: Round) -> tuple[Tensor, Tensor]:
        """What participants have uploaded, mean features ``[uploads, features]``, and their classes, ``[uploads]``."""
        ids = batch.examples.host_ids.sort().values
        means, present = (all_rows(self.clients.stack(name), self.num_clients)[ids] for name in (MEANS, PRESENT))
        clients, classes = present.nonzero(as_tuple=True)
        return means[clients, classes], classes

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Participants send their mean features of each class that they have."""
        super().count_traffic(batch, up, down)
        uploads = int((batch.examples.class_counts(self.task.classes) > 0).sum())
        up.add({MEANS: self.clients.first([MEANS])[MEANS][0]}, uploads)
