from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from pfl_lightning.client import Examples, Phase
from pfl_lightning.client.layers import part
from pfl_lightning.client.predictions import Predictions
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.federation.client_states import all_rows
from pfl_lightning.methods.families.averaging import Weighted
from pfl_lightning.methods.method import Method
from pfl_lightning.models import Network
from pfl_lightning.models.network import num_outputs
from pfl_lightning.seeding import seed_of
from pfl_lightning.tasks.classification import as_outputs
from pfl_lightning.tree import Params, Tree, repeated

PROTOTYPES = "prototypes"  # of each class
SHARES = "shares"  # of each class, among the samples or the uploads; 0 while its prototype is unknown
# of each client, in the last round that it took part in: mean features by class, and which classes it has
MEANS = "means"
PRESENT = "present"


class ClassSums(NamedTuple):
    """Sums over the samples of each client.

    Attributes:
        features: Sum of the features of each class, ``[cohort, classes, features]``.
        counts: Number of samples of each class, ``[cohort, classes]``.
        squares: Sum of the squared norms of all features, ``[cohort]``.
    """

    features: Tensor
    counts: Tensor
    squares: Tensor

    @property
    def means(self) -> Tensor:
        """Mean features of each class, ``[cohort, classes, features]``; 0 for classes that a client lacks."""
        return self.features / self.counts.clamp(min=1)[..., None]

    @property
    def present(self) -> Tensor:
        """1 for the classes that a client has, ``[cohort, classes]``."""
        return (self.counts > 0).to(self.features)


class Prototypes(Weighted):
    """Pulls the features of clients' samples to global prototypes: the mean features of each class.

    z are the features of a sample of class y, and p_y is the global prototype of the class:

        loss = cross-entropy + strength * mean((z - p_y)^2)    # the term once p_y is known
        p_y  = mean of the clients' features of class y, over all samples of the participants

    (with ``weighting: uniform`` each client's samples count 1 / n_i).

    Args:
        strength: Weight of the term, the papers' lambda.
        kwargs: Options of the bases.
    """

    uploads = (PROTOTYPES, SHARES)
    needs = ("classes", "features")

    def __init__(self, strength: NonNegativeFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strength = strength

    def server_state(self, tensors: Tree) -> Tree:
        """No prototypes yet."""
        return no_prototypes(self, tensors)

    def with_prototypes(self, cohort: Examples, trained: Params) -> Params:
        """The tensors after training, with each client's share of the prototypes beside them, to be uploaded."""
        sums = class_sums(self, cohort, trained)
        samples = cohort.device_counts.to(sums.counts)[:, None]
        return trained.with_own({PROTOTYPES: sums.features / samples[..., None], SHARES: sums.counts / samples})

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Take the prototypes of the classes that participants have."""
        state = self.server.tree
        present = mean[SHARES] > 0
        state[PROTOTYPES][present] = (mean[PROTOTYPES] / mean[SHARES][:, None])[present]
        state[SHARES][present] = mean[SHARES][present]
        super().server_update(mean, batch)


class ClassMeans(Method):
    """Participants send their mean features of each class that they have, from which the server learns by SGD.

    It sees the features of each client.

    Args:
        server_lr: Learning rate of the server.
        server_batch: Uploads in a mini-batch of the server.
        kwargs: Options of the bases.
    """

    needs = ("classes", "features")
    prunes = False

    def __init__(self, server_lr: PositiveFloat = 0.01, server_batch: PositiveInt = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.server_lr = server_lr
        self.server_batch = server_batch

    @property
    def head_path(self) -> str:
        """Path of the linear layer that the head begins with."""
        return self.network.linear_head(self.parts["head"])

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """What clients keep, and no features yet."""
        weight = tensors[f"{self.head_path}.weight"]
        means = weight.new_zeros(self.task.classes, weight.shape[1])
        own = repeated({MEANS: means, PRESENT: means[:, 0]}, num_clients)
        return {**super().initial_state(tensors, num_clients, seed), **own}

    def with_means(self, cohort: Examples, trained: Params) -> Params:
        """The tensors after training, with each client's mean features beside them."""
        sums = class_sums(self, cohort, trained)
        return trained.with_own({MEANS: sums.means, PRESENT: sums.present})

    def uploaded(self, batch: Round) -> tuple[Tensor, Tensor]:
        """What participants have uploaded, mean features ``[uploads, features]``, and their classes, ``[uploads]``."""
        ids = batch.examples.host_ids.sort().values
        means, present = (all_rows(self.clients.stack(name), self.num_clients)[ids] for name in (MEANS, PRESENT))
        clients, classes = present.nonzero(as_tuple=True)
        return means[clients, classes], classes

    def mini_batches(self, batch: Round, uploads: int, epochs: int) -> Iterator[Tensor]:
        """Places of the uploads in each mini-batch of the server, in a new order in each epoch."""
        for epoch in range(epochs):
            source = torch.Generator().manual_seed(seed_of(batch.seed, "server", batch.round_index, epoch))
            yield from torch.randperm(uploads, generator=source).to(self.device).split(self.server_batch)

    def server_steps(
        self, batch: Round, parameters: Iterable[Tensor], uploads: int, epochs: int, loss_of: Callable[[Tensor], Tensor]
    ) -> None:
        """Train by SGD at the server.

        Args:
            batch: The round.
            parameters: What trains.
            uploads: Number of uploads.
            epochs: Epochs over them.
            loss_of: The loss of a mini-batch, given the places of its uploads.
        """
        optimizer = SGD(parameters, lr=float(self.server_lr))
        for places in self.mini_batches(batch, uploads, epochs):
            with torch.enable_grad():
                loss = loss_of(places)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Participants send their mean features of each class that they have."""
        super().count_traffic(batch, up, down)
        uploads = int((batch.examples.class_counts(self.task.classes) > 0).sum())
        up.add({MEANS: self.clients.first([MEANS])[MEANS][0]}, uploads)


def no_prototypes(method: Method, tensors: Tree) -> Tree:
    """What a server begins with: zeros, ``[classes, features]``, and which of them are known, ``[classes]``."""
    weight = tensors[f"{method.network.linear_head(method.parts['head'])}.weight"]
    prototypes = weight.new_zeros(method.task.classes, weight.shape[1])
    return {PROTOTYPES: prototypes, SHARES: prototypes[:, 0]}


def near_prototypes(method: Method, strength: float, phase: Phase) -> Phase:
    """A phase whose loss also pulls features to the prototypes that clients have received; see ``Prototypes``.

    Args:
        method: The method.
        strength: Weight of the term; 0 leaves the phase as it is.
        phase: The phase.
    """

    def losses(outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        has_prototype = extras[f"server.{SHARES}"][targets] > 0
        distances = (features.flatten(1) - extras[f"server.{PROTOTYPES}"][targets]).square().mean(1)
        near: Tensor = method.sample_losses(outputs, targets) + strength * distances * has_prototype
        return near

    return replace(phase, feature_loss=losses) if strength else phase


def nearest_prototype(method: Method) -> Network:
    """The body before a head that decides for the nearest prototype; the whole network until there is one."""
    prototypes, shares = (method.server.tree[name] for name in (PROTOTYPES, SHARES))
    if not (shares > 0).any():
        return method.network
    body = dict(part(method.network, 0, method.engine.body_layers()).named_children())
    return Network({**body, "nearest": Nearest(prototypes, shares > 0)})


class Nearest(nn.Module):
    """A head that decides for the class with the nearest prototype.

    Args:
        prototypes: Prototypes of all classes, ``[classes, features]``.
        known: Which of them there are, ``[classes]``; the others are never nearest.
    """

    prototypes: Tensor
    known: Tensor

    def __init__(self, prototypes: Tensor, known: Tensor) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("known", known)

    def forward(self, features: Tensor) -> Tensor:
        """Log-probabilities, a softmax of minus squared distances; of two classes the logit, ``[batch, outputs]``."""
        near = 2 * features.flatten(1) @ self.prototypes.T - self.prototypes.square().sum(1)
        logs = near.masked_fill(~self.known, -torch.inf).log_softmax(1).clamp(min=log(torch.finfo(near.dtype).tiny))
        return as_outputs(logs, num_outputs(len(self.known)))


def class_sums(method: Method, cohort: Examples, params: Params) -> ClassSums:
    """Sums over each client's samples of their features by its model.

    Args:
        method: The method, of whose network the head begins with a linear layer.
        cohort: Examples of the clients.
        params: All tensors of their models, and perhaps others.
    """
    head = method.network.linear_head(method.parts["head"])
    weight = params.tree[f"{head}.weight"]
    parts = method.engine.features(cohort, params.select(method.parts["all"]))
    return sums_by_class(parts, weight.new_zeros(len(cohort), method.task.classes, weight.shape[-1]))


def sums_by_class(parts: Iterable[Predictions], sums: Tensor) -> ClassSums:
    """Sums over each client's samples of whatever a network makes of them.

    Args:
        parts: That of some samples at a time.
        sums: Zeros, ``[cohort, classes, width]``, to which they are added.
    """
    counts = sums.new_zeros(sums.shape[:2])
    squares = sums.new_zeros(len(sums))
    for rows, features, targets, present in parts:
        members = F.one_hot(targets, counts.shape[1]).to(sums) * present[..., None]  # [clients, samples, classes]
        sums[rows] += members.transpose(1, 2) @ features.flatten(2)
        counts[rows] += members.sum(1)
        squares[rows] += (features.flatten(2).square().sum(2) * present).sum(1)
    return ClassSums(sums, counts, squares)
