from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat, NonNegativeInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.prototypes import (
    PROTOTYPES,
    SHARES,
    ClassMeans,
    near_prototypes,
    nearest_prototype,
    no_prototypes,
)
from pfl_lightning.models import MLP, Architectures, Network, Part, start_network
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tree import Params, Tree, prefixed, select, sum_type

EMBEDDINGS = "embeddings"
GENERATOR = "generator"  # prefix


class FedTGP(ClassMeans):
    """Clients keep their models, and the server trains prototypes that are near theirs and far from each other.

    Rule of a round; z are the features of a sample of class y, and P_ic are the mean features of client i's samples of
    class c by its trained model:

        loss = cross-entropy + strength * mean((z - p_y)^2)    # the term once p_y is known
        w_i  = SGD for epochs on the mean of this loss over the samples of client i, from w_i
        upload P_ic
        q_c  = mean of P_ic over the participants that have class c
        gap  = min(largest_margin, max over c of min over d != c of |q_c - q_d|)
        e, G = SGD for server_epochs on cross-entropy of -(|P_ic - G(e_d)| + [d = c] gap) over d
        p_c  = G(e_c)

    The server keeps an embedding e_c of each class and the generator G, a network with one hidden layer, and trains
    them on the uploads in random mini-batches. Classes that no client has had so far are left out everywhere. Clients
    are evaluated with their own bodies, and the nearest prototype decides (``stored``); until there are prototypes
    their own heads do.

    Paper: Zhang, Liu, Hua, Cao, FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning
    for Data and Model Heterogeneity in Federated Learning, AAAI 2024, arXiv:2401.03230, Algorithm 1.

    Differs: the paper's eq. (9) takes the largest distance of any two q, where its authors' code takes the largest
    distance of nearest neighbours, as here. In that code a class that nobody uploads has the smallest gap, and a
    prototype that can win.

    Args:
        strength: Weight of the clients' term, the paper's lambda; 10 in its experiments.
        largest_margin: Bound of the gap, the paper's tau.
        server_epochs: Epochs over the uploads.
        kwargs: Options of the bases.
    """

    keeps: Part = "all"
    eval_models = ("stored",)

    def __init__(
        self,
        strength: NonNegativeFloat = 1.0,
        largest_margin: NonNegativeFloat = 100.0,
        server_epochs: NonNegativeInt = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.strength = strength
        self.largest_margin = largest_margin
        self.server_epochs = server_epochs

    def complete_networks(self, networks: Architectures, seed: int) -> None:
        """Keep the seed for the generator."""
        self.generator_seed = seed_of(seed, GENERATOR)

    def server_state(self, tensors: Tree) -> Tree:
        """No prototypes yet, and random embeddings, ``[classes, features]``, and generator (``generator.*``)."""
        prototypes = no_prototypes(self, tensors)
        width = prototypes[PROTOTYPES].shape[1]
        make_generator = partial(MLP, hidden=(width,))
        generator = start_network(make_generator, (width,), width, self.generator_seed, {}).state_dict()
        source = torch.Generator().manual_seed(seed_of(self.generator_seed, EMBEDDINGS))
        embeddings = torch.randn(prototypes[PROTOTYPES].shape, generator=source).to(prototypes[PROTOTYPES])
        return {**prototypes, EMBEDDINGS: embeddings, **prefixed(GENERATOR, generator)}

    def broadcast(self) -> Tree:
        """The prototypes."""
        return prefixed("server", select(self.server.tree, (PROTOTYPES, SHARES)))

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train near the prototypes, and compute mean features."""
        phase = near_prototypes(self, self.strength, self.phase("all"))
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        return self.with_means(cohort, trained), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Train embeddings and generator."""
        features, classes = self.uploaded(batch)
        state = self.server.tree
        sums = features.new_zeros(state[PROTOTYPES].shape).index_add(0, classes, features)
        counts = classes.bincount(minlength=len(sums))
        state[SHARES] += counts
        gap = margin(sums[counts > 0] / counts[counts > 0, None], self.largest_margin)
        leaves = {name: state[name].clone().requires_grad_() for name in state.keys() - {PROTOTYPES, SHARES}}

        def loss_of(places: Tensor) -> Tensor:
            return self.contrast(features[places], classes[places], generated(leaves), gap)

        self.server_steps(batch, leaves.values(), len(classes), self.server_epochs, loss_of)
        for name, tensor in {**leaves, PROTOTYPES: generated(leaves)}.items():
            state[name].copy_(tensor.detach())

    def eval_network(self, model: str, params: Params) -> Network:
        """The body before the nearest prototype."""
        return nearest_prototype(self)

    def contrast(self, features: Tensor, classes: Tensor, prototypes: Tensor, gap: Tensor) -> Tensor:
        """The server's loss on some uploads.

        Args:
            features: Mean features, ``[uploads, features]``.
            classes: Their classes, ``[uploads]``.
            prototypes: ``[classes, features]``.
            gap: By how much nearer an upload must be to the prototype of its class, ``[]``.
        """
        outputs = -distances(features, prototypes) - gap * F.one_hot(classes, len(prototypes))
        unknown = self.server.tree[SHARES] == 0
        return F.cross_entropy(outputs.masked_fill(unknown, -torch.inf), classes)


def generated(server: Tree) -> Tensor:
    """The prototypes that the generator makes of the embeddings, ``[classes, features]``."""
    weights = {name.removeprefix(f"{GENERATOR}."): tensor for name, tensor in server.items()}
    hidden = F.linear(weights[EMBEDDINGS], weights["fc1.weight"], weights["fc1.bias"]).relu()
    return F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])


def margin(means: Tensor, largest: float) -> Tensor:
    """The largest distance of a class to its nearest neighbour, but at most ``largest``; 0 if there is one class.

    Args:
        means: Mean features of the classes, ``[classes, features]``.
        largest: The bound.
    """
    if len(means) < 2:
        return means.new_zeros(())
    return distances(means, means).fill_diagonal_(torch.inf).min(1).values.max().clamp(max=largest)


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Distances between all rows and others, ``[rows, others]``; cdist knows no half precision."""
    exact = sum_type(rows.dtype)
    return torch.cdist(rows.to(exact), others.to(exact), compute_mode="donot_use_mm_for_euclid_dist")
