from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples
from pfl_lightning.client.predictions import Predictions
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Weighted
from pfl_lightning.methods.method import Method
from pfl_lightning.tree import Params, Tree

PROTOTYPES = "prototypes"  # mean features of each class
SHARES = "shares"  # of each class among the samples


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
        """No prototypes yet: zeros, ``[classes, features]``, and which are known, ``[classes]``."""
        weight = tensors[f"{self.network.linear_head(self.parts['head'])}.weight"]
        prototypes = weight.new_zeros(self.task.classes, weight.shape[1])
        return {PROTOTYPES: prototypes, SHARES: prototypes[:, 0]}

    def losses_near_prototypes(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        has_prototype = extras[f"server.{SHARES}"][targets] > 0
        distances = (features.flatten(1) - extras[f"server.{PROTOTYPES}"][targets]).square().mean(1)
        losses: Tensor = self.sample_losses(outputs, targets) + self.strength * distances * has_prototype
        return losses

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
