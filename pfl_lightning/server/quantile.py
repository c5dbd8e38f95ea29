"""A quantile of clients' values, computed from nothing but sums over the clients."""

from collections.abc import Callable

import torch
from torch import Tensor

from pfl_lightning.seeding import Key
from pfl_lightning.server.aggregator import Aggregator

AddUp = Callable[[Tensor], Tensor]
"""Maps contributions, ``[clients, k]``, to their weighted sum, ``[k]``, with weights that sum to 1."""

STILL = 1e-9  # iteration stops after a step that moves the quantile by less


def quantile_from_sums(
    values: Tensor, share: float, add_up: AddUp, resolution: float = 1e-6, steps: int = 100
) -> float:
    """Weighted quantile by majorize-minimize steps, each of which is one sum.

    Rule; F_k are the values, alpha_k the weights and p is ``share``:

        q = sum_k alpha_k F_k
        repeat steps times:
            beta_k = alpha_k / max(resolution, |F_k - q|)                  # at client k
            q      = (sum_k beta_k F_k + 2 p - 1) / sum_k beta_k

    The smoothed pinball loss of q never increases. Close to a value F_k, the result can be larger than F_k by up to
    ``resolution``: for the values 1, 2, 3, 4 with weights proportional to them and p = 0.5, q converges to 3 +
    resolution / 3. A caller that keeps the clients with ``F_k >= q`` must therefore compare with ``q - resolution``, in
    float64. See docs/evidence/derivations.md, Quantile from sums.

    Paper: Laguel et al., Device Heterogeneity in Federated Learning: A Superquantile Approach, 2020, arXiv:2002.11223,
    Algorithm 3.

    Args:
        values: One finite number per client, ``[clients]``.
        share: Share of the weight at or below the quantile, in [0, 1].
        add_up: Adds up contributions of the clients, ``[clients, 1]`` for the first sum and ``[clients, 2]`` for the
            others; if the values are at most ``1 / resolution`` in size, so are these.
        resolution: Distance below which a value is the quantile.
        steps: Largest number of steps; fewer if the quantile no longer moves.

    Returns:
        The quantile, up to ``resolution`` and what further steps would change.
    """
    values = values.double()
    quantile = float(add_up(values[:, None]))
    for _ in range(steps):
        previous = quantile
        quantile = step(values, share, quantile, add_up, resolution)
        if abs(quantile - previous) < STILL:
            break
    return quantile


def step(values: Tensor, share: float, quantile: float, add_up: AddUp, resolution: float) -> float:
    """One step of ``quantile_from_sums``: minimize a parabola that lies above the pinball loss and touches it at q.

    Clients send ``beta_k (F_k - q)`` rather than ``beta_k F_k``: the rule is the same, and the size at most 1.

    Args:
        values: Float64, ``[clients]``.
        share: Share of the weight at or below the quantile.
        quantile: q before the step.
        add_up: Adds up contributions, ``[clients, 2]``.
        resolution: Distance below which a value is the quantile.

    Returns:
        q after the step.
    """
    above = values - quantile
    curvature = 1 / above.abs().clamp_min(resolution)
    pull, total = add_up(torch.stack([curvature * above, curvature], dim=1))
    return quantile + float((pull + 2 * share - 1) / total)


class ClientSums:
    """Adds up contributions of clients, by one sum per call.

    Args:
        aggregator: Adds up for the server.
        ids: The clients, ``[clients]``, on the CPU.
        weights: Their weights, with a sum of 1, ``[clients]``.
        key: Key for the randomness of secure sums.
        limit: Largest absolute value of a contribution.

    Attributes:
        uploaded: Bytes that clients have uploaded so far.
    """

    def __init__(self, aggregator: Aggregator, ids: Tensor, weights: Tensor, key: Key, limit: float) -> None:
        self.aggregator = aggregator
        self.ids = ids
        self.weights = weights
        self.key = key
        self.limit = limit
        self.calls = 0
        self.uploaded = 0

    def __call__(self, values: Tensor) -> Tensor:
        """The weighted sum of some numbers of each client, ``[clients, ...]``."""
        total = self.aggregator.start(self.ids, (*self.key, self.calls), self.limit)
        total.add(self.ids, total.encode(self.ids, self.weights, {"values": values}))
        found = total.result()["values"]
        self.calls += 1
        self.uploaded += total.uploaded
        return found
