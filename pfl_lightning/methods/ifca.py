from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods.families.averaging import SharedStatistics
from pfl_lightning.methods.families.several_models import WEIGHTS, SeveralModels, uploaded
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, select, wide


class IFCA(SeveralModels, SharedStatistics):
    """Several models for groups of clients (clusters), each of which trains the model that has its lowest loss.

    Rule of a round; w_g are the models of the groups, and F_i is the loss on all training samples of client i:

        g_i = argmin_g F_i(w_g), for every participant
        w_i = SGD for epochs on f_i, from w_{g_i}
        w_g = sum_{i: g_i = g} weight_i * w_i / sum_{i: g_i = g} weight_i    # if there are any

    Clients are evaluated with the model of their group, chosen in the same way (``cluster``). The server learns sums
    alone: a client uploads its model for its group, and zeros for the others. With one group it is FedAvg. The network
    is the first group's model. Models are not pruned.

    Paper: Ghosh, Chung, Yin, Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
    arXiv:2006.04088, Algorithm 1 with model averaging (option II).

    Differs: the models begin with the same body, which can be pretrained, and with a random head each; in the paper all
    is random, and the best of several starts is taken. Means are weighted by ``weighting``. New clients that train a
    new head do so on the body of the group that had the most weight in the last round.

    Args:
        groups: Number of groups, the paper's k; at most one for each client.
        kwargs: Options of the bases.
    """

    eval_models = ("cluster",)

    def __init__(self, groups: PositiveInt = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = groups

    def server_state(self, tensors: Tree) -> Tree:
        """See ``SeveralModels``.

        Raises:
            PflError: If there are more groups than clients.
        """
        if self.number > (most := self.num_clients):
            raise PflError(f"model.groups: {self.number} is not possible with {most} clients; allowed: 1 to {most}")
        return super().server_state(tensors)

    def grouped(self, cohort: Examples, received: Params) -> tuple[Tensor, Params]:
        """The group of each client, ``[cohort]``, and its model."""
        models = self.models(received)
        chosen = torch.stack([self.engine.mean_losses(cohort, model) for model in models]).argmin(0)
        rows = {name: torch.stack([model.shared[name] for model in models])[chosen] for name in sorted(self.shared)}
        return chosen, models[0].with_own(rows)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the model of the group, and upload it for this group alone."""
        chosen, start = self.grouped(cohort, received)
        trained, losses = super().local_update(cohort, start, key)
        members = F.one_hot(chosen, self.number).to(losses)
        uploads = {WEIGHTS: members}
        for group, present in enumerate(members.unbind(1)):
            rows = {name: wide(present, row) * row for name, row in select(trained.own, self.shared).items()}
            uploads |= uploaded(group, rows)
        return trained.with_own(uploads), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Set the model of each group that has members to their mean."""
        means = dict(mean)
        for group, model in enumerate(self.models(Params(self.broadcast(), {}))):
            weight = mean[WEIGHTS][group]
            for name, tensor in uploaded(group, model.shared).items():
                means[name] = torch.where(weight > 0, mean[name] / weight, tensor)
        super().server_update(means, batch)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model of the group."""
        return self.grouped(train, received)[1]
