from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import PositiveFloat, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.federation.client_states import all_rows
from pfl_lightning.methods.families.averaging import ServerOptimized, SharedStatistics, Uplinked
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.methods.families.prototypes import PROTOTYPES, Prototypes, class_sums, near_prototypes
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.server import least_on_simplex
from pfl_lightning.tree import Params, Tree, repeated

# of each client's features by the received body: h_i, and v_i
MEANS = "means"
VARIANCE = "variance"


class FedPAC(FineTuned, Prototypes, Uplinked, ServerOptimized, SharedStatistics):
    """Shared body whose features are pulled to global prototypes, and personal heads, mixed among similar clients.

    Rule of a round; z are the features of a sample of class y, p_y is the global prototype of the class, and n_i is the
    number of samples of client i; row y of h_i is the sum of its z of class y, divided by n_i:

        h_i    = class sums of z by the received body, divided by n_i
        v_i    = (mean of |z|^2 - |h_i|^2) / n_i                          # variance of h_i
        head_i = SGD for head_epochs on f_i(body, .), from head_i
        body_i = SGD for epochs on f_i(., head_i) + strength * mean((z - p_y)^2), from body
        p_y    = mean of the features of class y by body_i, over the participants' samples
        body   = body - server_lr * (body - sum_i weight_i * body_i)
        a_i    = argmin of sum_j a_j^2 v_j + |h_i - sum_j a_j h_j|^2, over a_j >= 0 with sum 1
        head_i = sum_j a_ij * head_j                           # i and j are participants

    Without p_y there is no term. The mix needs each client's head and h, so that there is no option for sums: the
    server has to see them. Its step takes time quadratic in their number. Where one client takes part in a
    round, with ``strength`` 0 and an epoch, it is FedRep. ``momentum`` is 0.5 by default.

    Paper: Xu, Tong, Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR
    2023, arXiv:2306.11867, Algorithm 1.

    Differs: the quadratic program is solved exactly, where the authors' code leaves out small eigenvalues and weights.
    That code pulls features of a class without p_y to the client's own mean, and needs each class at one participant or
    more; here p_y stays as it was where none has the class.

    Args:
        head_epochs: Epochs on the head before those on the body.
        head_lr: Learning rate of the head, also before an evaluation; 0.1 in the authors' code, beside 0.01 for the
            body. Default: ``lr``.
        kwargs: Options of the bases.
    """

    keeps: Part = "head"
    usual_momentum = 0.5

    def __init__(self, head_epochs: PositiveInt = 1, head_lr: PositiveFloat | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.head_epochs = head_epochs
        self.head_lr = head_lr

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Each client's head, and no statistics yet."""
        means = self.server_state(tensors)[PROTOTYPES]
        statistics = repeated({MEANS: means, VARIANCE: means.new_zeros(())}, num_clients)
        return {**super().initial_state(tensors, num_clients, seed), **statistics}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Compute the statistics, and train the head, then the body near the prototypes."""
        statistics = self.statistics(cohort, received)
        head = self.phase("head", self.head_epochs, self.head_lr)
        body = near_prototypes(self, self.strength, self.phase("body"))
        trained, _ = self.engine.train(cohort, received, head, (*key, "head"))
        trained, losses = self.engine.train(cohort, trained, body, (*key, "body"))
        return self.with_prototypes(cohort, trained).with_own(statistics), losses

    def statistics(self, cohort: Examples, received: Params) -> Tree:
        """h_i and v_i, ``[cohort, classes, features]`` and ``[cohort]``."""
        sums = class_sums(self, cohort, received)
        samples = cohort.device_counts
        means = sums.features / samples[:, None, None]
        variances = (sums.squares / samples - means.square().sum((1, 2))) / samples
        return {MEANS: means, VARIANCE: variances.clamp(min=0)}

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Mix the participants' heads, and update prototypes and body."""
        ids = batch.examples.host_ids.sort().values
        self.clients.mix(self.head_weights(ids), self.parts["head"], ids=ids)
        super().server_update(mean, batch)

    def head_weights(self, ids: Tensor) -> Tensor:
        """The a_ij among some clients, float64 ``[clients, clients]``."""
        products = self.clients.inner_products([MEANS], ids).cpu()
        noisy = products + all_rows(self.clients.stack(VARIANCE), self.num_clients).cpu()[ids].double().diag()
        self.check_finite(noisy)
        rows = zip(products, products.diagonal(), strict=True)
        return torch.stack([least_on_simplex(noisy + square - row - row[:, None]) for row, square in rows])

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Participants also send their heads and statistics, and receive the mix of heads."""
        super().count_traffic(batch, up, down)
        head = self.clients.first(self.parts["head"])
        up.add({**head, **self.clients.first((MEANS, VARIANCE))}, len(batch.examples))
        down.add(head, len(batch.participants))
