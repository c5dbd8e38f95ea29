"""Votes by the distances between clients' models, which follow from the inner products of their changes."""

from abc import abstractmethod
from math import ceil, floor

import torch
from torch import Tensor

from pfl_lightning.bounds import ROUNDING, NonNegativeInt, PositiveFloat, PositiveInt, ShareBelowHalf
from pfl_lightning.errors import PflError
from pfl_lightning.server.votes import Median, Vote, in_order, middle_of
from pfl_lightning.tree import Tree


class WeightedVote(Vote):
    """The change of the model is a weighted sum of the clients' changes."""

    @abstractmethod
    def weigh(self, products: Tensor, ids: Tensor) -> Tensor:
        """The weights, float64 ``[changes]``; arguments as for ``mixes``."""

    def mixes(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``Vote``."""
        return self.weigh(products, ids)[None]

    def combine(self, rows: Tensor) -> Tensor:
        """See ``Vote``: the only row."""
        return rows[0]


class Krum(WeightedVote):
    """The model that has the nearest others, or the mean of several such ones (Multi-Krum).

    Rule, with f of n clients assumed to attack, and of equal scores the one of the smallest id:

        s_i = sum of |u_i - u_j|^2 over the n - f - 2 nearest others j
        u   = mean of the ``kept`` changes with the smallest s_i

    Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent, NeurIPS 2017, arXiv:1703.02757.

    Args:
        share: Share of the clients that are assumed to attack, rounded down to whole clients: f. A round needs 2f + 3.
        kept: Models that are kept; null for n - f of them.
    """

    def __init__(self, share: ShareBelowHalf = 0.2, kept: PositiveInt | None = 1) -> None:
        super().__init__()
        self.share = share
        self.kept = kept
        self.fewest = fewest_clients(2, share)

    def weigh(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``WeightedVote``."""
        f = assumed(self.share, len(ids))
        best = krum_scores(squared_distances(products), f).argsort(stable=True)
        chosen = best[: min(self.kept or len(ids) - f, len(ids))]
        return torch.zeros_like(products[0]).index_fill(0, chosen, 1 / len(chosen))


class Bulyan(Vote):
    """Krum chooses some models, of which each entry is the mean of the values nearest to their median.

    Rule, with f of n clients assumed to attack: n - 2f models are chosen by Krum, one after the other among those that
    are left, and each entry is the mean of the n - 4f values of them that are nearest to their median.

    Paper: El Mhamdi, Guerraoui, Rouault, The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018,
    arXiv:1802.07927.

    Args:
        share: Share of the clients that are assumed to attack, below a quarter, rounded down to whole clients: f. A
            round needs 4f + 3.

    Raises:
        PflError: If the share is not below a quarter.
    """

    def __init__(self, share: ShareBelowHalf = 0.2) -> None:
        super().__init__()
        if share >= 0.25:
            raise PflError(f"model.aggregator.share must be below 0.25 with Bulyan, got {share}")
        self.share = share
        self.fewest = fewest_clients(4, share)
        self.beyond = 0  # chosen values of an entry that do not count

    def mixes(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``Vote``: the chosen models."""
        f = assumed(self.share, len(ids))
        distances = squared_distances(products)
        left = torch.arange(len(ids), device=products.device)
        chosen = []
        for _ in range(len(ids) - 2 * f):
            best = int(krum_scores(distances[left][:, left], f).argmin()) if len(left) > 1 else 0
            chosen.append(int(left[best]))
            left = left[left != chosen[-1]]
        self.beyond = 2 * f
        return torch.eye(len(ids), dtype=products.dtype, device=products.device)[sorted(chosen)]

    def combine(self, rows: Tensor) -> Tensor:
        """See ``Vote``."""
        ordered = in_order(rows)
        middle = middle_of(ordered)
        counted = len(rows) - self.beyond
        # the nearest ones stand side by side; of all such rows of values these have the nearest ends
        first = torch.maximum(middle - ordered[: self.beyond + 1], ordered[counted - 1 :] - middle).argmin(0)
        places = first + torch.arange(counted, device=rows.device)[:, None]
        return ordered.T.gather(1, places.T).mean(1)


class GeometricMedian(WeightedVote):
    """RFA: the point with the smallest sum of distances to the clients' models, by some steps of Weiszfeld's algorithm.

    Rule, from the mean of the changes z on:

        repeat steps times: b_i = 1 / max(smoothing, |z - u_i|);  z = sum_i b_i u_i / sum_i b_i

    Paper: Pillutla, Kakade, Harchaoui, Robust Aggregation for Federated Learning, IEEE Transactions on Signal
    Processing 2022, arXiv:1912.13445, Algorithm 2.

    Differs: clients count the same, where the paper has their samples as weights; it does all steps, where the paper's
    code stops once the sum of distances changes by less than 1e-6 of itself.

    Args:
        steps: Steps of the algorithm.
        smoothing: Smallest distance that is divided by.
    """

    def __init__(self, steps: PositiveInt = 4, smoothing: PositiveFloat = 1e-5) -> None:
        super().__init__()
        self.steps = steps
        self.smoothing = smoothing

    def weigh(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``WeightedVote``."""
        weights = torch.full_like(products[0], 1 / len(products))
        for _ in range(self.steps):
            near = 1 / distances_from(weights, products).clamp(min=self.smoothing)
            weights = near / near.sum()
        return weights


class NormClipping(WeightedVote):
    """The mean of the changes, of which each is clipped to a norm.

    Rule, where the radius is by default the median of the norms in the round:

        u = (1 / n) sum_i u_i min(1, radius / |u_i|)

    Paper: Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019, arXiv:1911.07963, Norm
    thresholding of updates; its radius is given.

    Args:
        radius: Norm to which changes are clipped. Default: the median of the round.
    """

    def __init__(self, radius: PositiveFloat | None = None) -> None:
        super().__init__()
        self.radius = radius

    def weigh(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``WeightedVote``."""
        norms = products.diagonal().clamp(min=0).sqrt()
        radius = middle_of(norms.sort().values) if self.radius is None else self.radius
        return (radius / norms).where(norms > 0, 1).clamp(max=1) / len(ids)


class CenteredClipping(WeightedVote):
    """The mean of the changes, of which each is clipped around the result of the round before.

    Rule, where v is the change of the round before, 0 at first:

        repeat steps times: v = v + (1 / n) sum_i (u_i - v) min(1, radius / |u_i - v|)

    Paper: Karimireddy, He, Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021,
    arXiv:2012.10333, Algorithm 2.

    Args:
        radius: Norm to which differences are clipped.
        steps: Steps in a round.
    """

    def __init__(self, radius: PositiveFloat = 100.0, steps: PositiveInt = 1) -> None:
        super().__init__()
        self.radius = radius
        self.steps = steps

    def initial_memory(self, received: Tree) -> Tree:
        """See ``Aggregator``: the change of the round before."""
        return {name: torch.zeros(tensor.shape, device=tensor.device) for name, tensor in received.items()}

    def weigh(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``WeightedVote``."""
        clients = len(ids)
        weights = torch.zeros_like(products[0])
        weights[clients:] = 1
        for _ in range(self.steps):
            far = distances_from(weights, products)[:clients]
            factors = (self.radius / far).clamp(max=1) / clients  # nothing is far from itself: infinite, clamped
            weights = weights * (1 - factors.sum())
            weights[:clients] += factors
        return weights


class FLTrust(WeightedVote):
    """Changes count as they point in the direction of a trusted client's, and are as long as that.

    Rule; u_0 is the change of the trusted client, whose samples are the server's in the paper:

        t_i = max(0, cos(u_i, u_0));  u = sum_i t_i (|u_0| / |u_i|) u_i / sum_i t_i

    Nothing moves in a round without the trusted client, or if no change points in its direction.

    Paper: Cao, Fang, Liu, Gong, FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021,
    arXiv:2012.13995.

    Args:
        client: The trusted client's number.
    """

    def __init__(self, client: NonNegativeInt = 0) -> None:
        super().__init__()
        self.client = client

    def weigh(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``WeightedVote``."""
        nothing = torch.zeros_like(products[0])
        places = (ids == self.client).nonzero()
        if not len(places):
            return nothing
        trusted = int(places[0])
        norms = products.diagonal().clamp(min=0).sqrt()
        scale = norms[trusted] / norms
        trust = (products[trusted] / (norms * norms[trusted])).clamp(min=0)
        weights = (trust * scale).where((norms > 0) & (norms[trusted] > 0), 0)
        weights[trusted] = 0
        trust = trust.where(weights > 0, 0)
        return weights / trust.sum() if trust.sum() > 0 else nothing


class NearestNeighbours(Vote):
    """Replaces each client's change by the mean of those nearest to it, and then votes.

    Rule, with f of n clients assumed to attack: ``y_i`` = mean of the n - f changes nearest to ``u_i``, itself counted.

    Paper: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, Fixing by Mixing: A Recipe for Optimal Byzantine ML
    under Heterogeneity, AISTATS 2023, arXiv:2302.01772.

    Args:
        vote: The rule that follows; the median by default.
        share: Share of the clients that are assumed to attack, rounded down to whole clients: f.
    """

    def __init__(self, vote: Vote | None = None, share: ShareBelowHalf = 0.2) -> None:
        super().__init__()
        self.vote = vote
        self.share = share
        self.rule = vote or Median()
        self.fewest = self.rule.fewest

    def initial_memory(self, received: Tree) -> Tree:
        """See ``Aggregator``: that of the rule that follows."""
        return self.rule.initial_memory(received)

    def mixes(self, products: Tensor, ids: Tensor) -> Tensor:
        """See ``Vote``."""
        clients = len(ids)
        distances = squared_distances(products)[:clients, :clients]
        distances = distances.fill_diagonal_(-1)  # itself comes first
        nearest = distances.argsort(dim=1, stable=True)[:, : clients - assumed(self.share, clients)]
        means = torch.eye(len(products), dtype=products.dtype, device=products.device)
        means[:clients] = torch.zeros_like(means[:clients]).scatter_(1, nearest, 1 / nearest.shape[1])
        mixes = self.rule.mixes(means @ products @ means.T, ids)
        return means[:clients] if mixes is None else mixes @ means

    def combine(self, rows: Tensor) -> Tensor:
        """See ``Vote``."""
        return self.rule.combine(rows)


def assumed(share: float, clients: int) -> int:
    """How many of some clients are assumed to attack."""
    return floor(share * clients + ROUNDING)


def fewest_clients(times: int, share: float) -> int:
    """The fewest clients n of which n >= times * f + 3 holds, and for all larger numbers, if f is a share of them."""
    return ceil(3 / (1 - times * share) - ROUNDING)


def squared_distances(products: Tensor) -> Tensor:
    """Squared distances between changes, given their inner products, ``[changes, changes]``; 0 to itself."""
    squares = products.diagonal()
    distances = squares[:, None] + squares - (products + products.T)
    return distances.clamp(min=0).fill_diagonal_(0)


def distances_from(weights: Tensor, products: Tensor) -> Tensor:
    """Distances of changes from a weighted sum of them, ``[changes]``."""
    along = products @ weights
    return (products.diagonal() - 2 * along + weights @ along).clamp(min=0).sqrt()


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """Sum of the squared distances to the n - f - 2 nearest others, at least one, ``[clients]``."""
    nearest = distances.sort(1).values[:, 1:]  # without itself
    return nearest[:, : max(1, len(distances) - f - 2)].sum(1)
