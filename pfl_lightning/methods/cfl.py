from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.whole_models import WholeModels
from pfl_lightning.seeding import Key
from pfl_lightning.server import cosines
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, zeros_like

UPDATE = "update"  # prefix of each client's last update
GROUPS = "groups"  # the number of each client's group


class CFL(WholeModels):
    """FedAvg within groups of clients, which the server splits in two where the clients' updates point apart.

    Rule of a round; all clients begin in one group, w_g is the model of group g, and delta_i is the last update of
    client i:

        w_i     = SGD for epochs on f_i, from w_{g_i}
        delta_i = w_i - w_{g_i}
        split every group g with |mean of its delta_i| < split_below
                             and max of its |delta_i| > split_above
        w_g     = mean of w_i over the participants in g, if there are any

    A group is split into the two halves between which the largest cosine of two updates is least, and both begin with
    its model. Groups that have no participant are not split, nor are those with a client that has not taken part yet.
    Norms and cosines are those of all parameters in a row.

    Clients are evaluated with the model of their group (``cluster``). With ``split_below`` 0 it is FedAvg with uniform
    weights. The server's step takes time quadratic in the number of clients. The rest is as in ``WholeModels``.

    Paper: Sattler, Müller, Samek, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
    Privacy Constraints, IEEE TNNLS 2021, arXiv:1910.01991.

    Differs: the paper also asks how noisy updates are before it splits a group; its authors' code does not, but splits
    nothing in the first 20 rounds and no group of two, and finds halves by complete linkage instead of the best ones.
    All of the paper's clients take part in every round, and its objective weighs them by samples; its authors' code
    takes plain means, too.

    Args:
        split_below: Norm of a group's mean update below which it may be split, the paper's epsilon_1.
        split_above: Norm of the largest update above which it may be split, the paper's epsilon_2.
        kwargs: Options of the bases.
    """

    weighting = "uniform"
    eval_models = ("cluster",)

    def __init__(self, split_below: NonNegativeFloat = 0.4, split_above: NonNegativeFloat = 1.6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.split_below = split_below
        self.split_above = split_above

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The model of each client's group, and its last update: zeros (``update.*``)."""
        updates = prefixed(UPDATE, zeros_like(select(tensors, self.engine.trainable)))
        return {**super().initial_state(tensors, num_clients, seed), **repeated(updates, num_clients)}

    @property
    def written_by_server(self) -> tuple[str, ...]:
        """The models of the groups, which all of their clients have."""
        return tuple(self.parts["all"])

    def server_state(self, tensors: Tree) -> Tree:
        """The group of each client, ``[clients]``."""
        return {GROUPS: torch.zeros(self.num_clients, dtype=torch.int64)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the model of the group, and keep the update."""
        start = received.select(self.parts["all"])
        trained, losses = super().local_update(cohort, start, key)
        updates = {name: trained.own[name] - start.own[name] for name in self.engine.trainable}
        return trained.with_own(prefixed(UPDATE, updates)), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Split groups, and set the model of each to the mean of its participants' models."""
        present = torch.zeros(self.num_clients, dtype=torch.bool)
        present[batch.examples.host_ids] = True
        groups = self.split(self.server.tree[GROUPS].cpu(), present)
        self.server.tree[GROUPS].copy_(groups)
        shares = ((groups[:, None] == groups) & present).double()
        ids = shares.any(1).nonzero()[:, 0]
        matrix = (shares / shares.sum(1, keepdim=True))[ids][:, ids]
        self.clients.mix(matrix, self.parts["all"], ids=ids)
        super().server_update(mean, batch)

    def split(self, groups: Tensor, present: Tensor) -> Tensor:
        """The groups after a round, ``[clients]``.

        Args:
            groups: Those before, on the CPU, ``[clients]``.
            present: Which clients have taken part in this round, ``[clients]``.
        """
        updates = [name for name in self.clients.names if name.startswith(f"{UPDATE}.")]
        products = self.clients.inner_products(updates).cpu()
        new_groups = groups.clone()
        for group in groups[present].unique():
            members = (groups == group).nonzero()[:, 0]
            among = products[members][:, members]
            mean = among.mean().clamp(min=0).sqrt()
            norms = among.diagonal().sqrt()
            if len(members) > 1 and norms.min() > 0 and norms.max() > self.split_above and mean < self.split_below:
                new_groups[members[other_half(cosines(among))]] = new_groups.max() + 1
        return new_groups

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model of the client's group."""
        return received.select(self.parts["all"])


def other_half(similarities: Tensor) -> Tensor:
    """Who leaves the first one, if some are split in two so that the largest similarity between the halves is least.

    Single linkage finds these halves.

    Args:
        similarities: Float64, ``[members, members]``.

    Returns:
        Boolean, ``[members]``.

    Examples:
        >>> other_half(torch.tensor([[1.0, -0.5, 0.2], [-0.5, 1.0, -0.1], [0.2, -0.1, 1.0]]).double())
        tensor([False,  True, False])
    """
    from sklearn.cluster import AgglomerativeClustering  # here, for it takes a quarter of a second

    halves = AgglomerativeClustering(2, metric="precomputed", linkage="single").fit_predict(1 - similarities.numpy())
    return torch.from_numpy(halves != halves[0])
