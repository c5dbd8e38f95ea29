from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import PositiveFloat
from pfl_lightning.client import Examples, join_outputs
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tasks import as_outputs
from pfl_lightning.tree import Params, Tree, assign, movable, prefixed, select

# of the features: a mean of each class, one covariance, and which means there are
MEANS = "means"
COVARIANCE = "covariance"
PRESENT = "present"
LEAST = 1e-4  # share of a class that a client lacks
UNKNOWN = -1e9  # output for a class of which nobody has a mean
TRIED = 11  # values of b
TIE = 1e-6  # difference of losses that rounding may cause


class Gaussians(NamedTuple):
    """Normal distributions of the features of each class, with one covariance.

    Attributes:
        means: ``[..., classes, features]``.
        covariance: ``[..., features, features]``.
        known: Which means there are, ``[..., classes]``.
    """

    means: Tensor
    covariance: Tensor
    known: Tensor


class PFedFDA(Averaging):
    """Shared body whose features are taken to be normal in each class, so that the head follows from their statistics.

    Rule of a round; z are features, mu_c and S the shared means and covariance, and pi_ic is the share of class c among
    client i's samples. With W_c = S^-1 mu_c the outputs of head(mu, S, pi) are W_c.z - W_c.mu_c / 2 + log pi_c:

        body_i    = SGD for epochs on f_i(., head(mu, S, pi_i)), from body  # head frozen
        m_ic      = mean of z of class c by body_i
        C_i       = sum of (z - m_ic) (z - m_ic)^T / (n_i - 1) + ridge * identity
        (mu, S)_i = b_i * (m_i, C_i) + (1 - b_i) * (mu, S)
        S         = sum_i weight_i * S_i
        mu_c      = weighted mean of mu_ic over the participants that have class c
        body      = body - server_lr * (body - sum_i weight_i * body_i)

    b_i is the one of 0, 0.1, ..., 1 with the least loss on one half of the client's samples with (m_i, C_i) of the
    other, and vice versa; it is 0 if no class has two samples. If only the server has a mean of a class, or only the
    client, mu_ic is that; a class without any is never predicted. mu begins as the weight of the first head, and S as
    the identity. Clients are evaluated with the body and head((mu, S)_i, pi_i), computed anew on their training samples
    (``personal``), and with the body and head(mu, S, uniform) (``global``).

    Paper: Mclaughlin, Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024,
    arXiv:2411.00329.

    Differs: the paper has one b for the means and another for the covariance, found by L-BFGS. A class that a client
    lacks counts as a share of 1e-4 of its samples, which the authors' code adds to all shares, and to every entry of
    C_i. In that code the mean of mu_ic is also over clients that lack the class.

    Args:
        ridge: What is added to the diagonal of C_i; 1 in the authors' code.
        kwargs: Options of the bases.
    """

    display_name = "pFedFDA"
    trains: Part = "body"
    uploads = (MEANS, COVARIANCE, PRESENT)
    needs = ("classes", "features")
    eval_models = ("personal", "global")

    def __init__(self, ridge: PositiveFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ridge = ridge

    @property
    def head_path(self) -> str:
        """Path of the head, a linear layer."""
        return self.network.linear_head(self.parts["head"], alone=True)

    def server_state(self, tensors: Tree) -> Tree:
        """The first means and covariance, of which no mean counts as known.

        Raises:
            PflError: If the head is not one linear layer with a bias.
        """
        weight = tensors[f"{self.head_path}.weight"]
        if f"{self.head_path}.bias" not in self.parts["head"]:
            kind = self.network.kind
            raise PflError(
                f"model.network: {kind} is not possible with PFedFDA; allowed: a linear last layer with bias"
            )
        means = F.pad(weight, (0, 0, self.task.classes - len(weight), 0))  # a single output is for the second class
        covariance = torch.eye(weight.shape[1]).to(weight)
        return {MEANS: means, COVARIANCE: covariance, PRESENT: torch.zeros_like(means[:, 0])}

    def broadcast(self) -> Tree:
        """The body and the statistics; clients make the head of these."""
        return {name: tensor for name, tensor in super().broadcast().items() if name not in self.parts["head"]}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the body before the head of the shared statistics, and compute the client's own."""
        counts = cohort.class_counts(self.task.classes)
        start = received.with_own(self.bayes_heads(shared_by(received.tree), counts))
        trained, losses = super().local_update(cohort, start, key)
        means, covariances, _ = self.adapted(cohort, trained)
        present = counts > 0
        uploads = {MEANS: means * present[..., None], COVARIANCE: covariances, PRESENT: present}
        like = received.tree[f"server.{MEANS}"]
        return trained.without(self.parts["head"]).with_own({n: rows.to(like) for n, rows in uploads.items()}), losses

    def adapted(self, cohort: Examples, params: Params) -> Gaussians:
        """(mu, S)_i, ``[cohort, ...]``, by the bodies among ``params``."""
        features = join_outputs(self.engine.features(cohort, params), len(cohort)).flatten(2).double()
        targets = cohort.targets(cohort.positions)
        found = []
        for row, count in enumerate(cohort.counts.tolist()):
            samples = features[row, :count], targets[row, :count]
            shared = shared_by(params.client(row))
            found.append(mixed(self.estimated(*samples), shared, self.best_share(*samples, shared)))
        return Gaussians(*map(torch.stack, zip(*found, strict=True)))

    def estimated(self, features: Tensor, targets: Tensor) -> Gaussians:
        """(m_i, C_i) of some samples, ``[samples, features]`` and ``[samples]``."""
        members = F.one_hot(targets, self.task.classes).to(features)
        counts = members.sum(0)
        means = members.T @ features / counts.clamp(min=1)[:, None]
        rest = features - means[targets]
        scatter = rest.T @ rest / max(len(rest) - 1, 1)
        return Gaussians(means, scatter + self.ridge * torch.eye(len(scatter)).to(scatter), counts > 0)

    def best_share(self, features: Tensor, targets: Tensor, shared: Gaussians) -> Tensor:
        """b_i, the smallest of those that are equally good."""
        members = F.one_hot(targets, self.task.classes)
        half = members.cumsum(0).gather(1, targets[:, None])[:, 0] % 2  # of each class every other sample
        has_two = members.sum(0)[targets] > 1
        shares = torch.linspace(0, 1, TRIED).to(features)
        losses = torch.zeros_like(shares)
        for fold in range(2):
            kept, tested = half != fold, (half == fold) & has_two
            own = self.estimated(features[kept], targets[kept])
            weights, biases = bayes_head(mixed(own, shared, shares), members[kept].sum(0))
            logs = (features[tested] @ weights.mT + biases[:, None]).log_softmax(2)  # [shares, samples, classes]
            losses -= (logs * members[tested]).sum((1, 2))
        return shares[(losses <= losses.min() + TIE).int().argmax()]

    def bayes_heads(self, distributions: Gaussians, counts: Tensor) -> Tree:
        """Heads of clients with so many samples of each class, ``[cohort, classes]``; by the head's names."""
        weights, biases = bayes_head(distributions, counts)
        like = self.network.get_parameter(f"{self.head_path}.weight")
        outputs = len(like)
        weights = as_outputs(weights.mT, outputs).mT.expand(len(counts), -1, -1)
        rows = {"weight": weights, "bias": as_outputs(biases, outputs)}
        return {f"{self.head_path}.{name}": stack.to(like) for name, stack in rows.items()}

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Update the body and the statistics, and make the head of these."""
        super().server_update(mean, batch)
        state = self.server.tree
        present = mean[PRESENT] > 0
        state[MEANS][present] = (mean[MEANS] / mean[PRESENT][:, None])[present]
        state[COVARIANCE].copy_(mean[COVARIANCE])
        state[PRESENT][present] = 1
        for name, rows in self.bayes_heads(shared_by(prefixed("server", state)), state[PRESENT][None]).items():
            assign(self.network.get_parameter(name).data, rows[0])

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The body with the client's head, or with that of the shared statistics."""
        if model == "global":
            return Params({**received.shared, **select(movable(self.network), self.parts["head"])}, received.own)
        return received.with_own(self.bayes_heads(self.adapted(train, received), train.class_counts(self.task.classes)))


def shared_by(tensors: Tree) -> Gaussians:
    """The server's statistics among what clients have received."""
    means, covariance, present = (tensors[f"server.{name}"].double() for name in (MEANS, COVARIANCE, PRESENT))
    return Gaussians(means, covariance, present > 0)


def mixed(own: Gaussians, shared: Gaussians, shares: Tensor) -> Gaussians:
    """A client's own statistics and the shared ones, mixed by the shares of its own, ``[...]``; one mix for each."""
    of_means = torch.where(shared.known, shares[..., None] * own.known, 1.0)
    means = torch.lerp(shared.means, own.means, of_means[..., None])
    covariance = torch.lerp(shared.covariance, own.covariance, shares[..., None, None])
    return Gaussians(means, covariance, own.known | shared.known)


def bayes_head(distributions: Gaussians, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases, ``[..., classes, features]`` and ``[..., classes]``, for so many samples of each class."""
    means, covariance, known = distributions
    weights = torch.linalg.solve_ex(covariance, means.mT).result.mT
    priors = counts.double() / counts.sum(-1, keepdim=True).clamp(min=1)
    biases = priors.clamp(min=LEAST).log() - (means * weights).sum(-1) / 2
    return weights, torch.where(known | (counts > 0), biases, UNKNOWN)
