from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveInt, restricted_number_type
from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods.base import Method
from pfl_lightning.metrics import smooth_quantile, tail_weights, weighted_quantile

Conformity: Any = restricted_number_type(
    "Conformity", float, [(">", 0), ("<=", 1)], docstring="a share above 0, up to 1"
)
FORWARD = 1 / 3  # of the time of a local epoch: a step's backward pass costs twice its forward pass


class DeltaFL(Method):
    """FedAvg over the clients that the model serves worst, those in the upper tail of the losses; also Simplicial-FL.

    Rule of a round::

        F_i       = f_i(w) on all training samples of client i           # every participant
        threshold = weighted quantile of the F_i at 1 - conformity
        w_i       = SGD for epochs on f_i, from w                        # clients with F_i >= threshold, the tail
        w         = w - server_lr * (w - sum_i weight_i * w_i)           # weights of the tail, normalised

    It minimises the superquantile of the losses, the mean of those F_i that hold a share ``conformity`` of the weight.
    ``conformity`` is the paper's theta: 1 is FedAvg, and a share below that of the worst client trains this one alone.
    With a ``dual`` tail a client at the threshold only counts as far as it is needed for that share. With
    ``smoothing``, the paper's nu, the weights fall off over a range of losses, and the threshold is the exact minimum
    over eta in Algorithm 1; this needs all clients in each round, and one full batch as the local step.

    Paper: Laguel et al., Device Heterogeneity in Federated Learning: A Superquantile Approach, 2020, arXiv:2002.11223,
    Algorithms 1 and 2.
    Differs: to report a loss takes a third of a local epoch of simulated time, and the tail waits for all reports; the
    paper has no clock.

    Args:
        conformity: Share of the weight in the tail, above 0 and up to 1.
        tail: Weights in the tail: ``hard`` (as in the paper's experiments), or ``dual`` (those of the superquantile).
        smoothing: Range of losses over which the weights of a dual tail fall to zero; 0 for none.
        quantile_every: Rounds between two computations of the threshold; a round in which no loss reaches the old
            threshold gets a new one, too.
        kwargs: See ``Method``.

    Raises:
        PflError: If ``smoothing`` is combined with a hard tail.
    """

    threshold: Tensor

    def __init__(
        self,
        conformity: Conformity = 0.5,
        tail: Literal["hard", "dual"] = "hard",
        smoothing: NonNegativeFloat = 0.0,
        quantile_every: PositiveInt = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if smoothing and tail == "hard":
            raise PflError(f"model.smoothing: {smoothing} is not possible with a hard tail; allowed: 0, or tail dual")
        self.conformity, self.tail, self.smoothing = conformity, tail, smoothing
        self.quantile_every = quantile_every
        self.register_buffer("threshold", torch.zeros(()))

    def choose(self, batch: Round) -> Round:
        """Choose the clients in the tail of the losses, unless that is everyone."""
        if self.conformity == 1:
            return batch
        losses = torch.cat(list(self.chunks.map(self._losses, batch.examples))).cpu()
        self.check_finite(losses)
        if self.clock.rounds % self.quantile_every == 0 or losses.max() <= self.threshold:
            self.threshold.fill_(self._threshold(losses, batch.weights))
        self.log("train/threshold", self.threshold)
        weights = self._weights(losses, batch.weights)
        chosen = batch._replace(weights=weights).take(weights > 0)
        reports = batch.times.max() * FORWARD / self.epochs
        return chosen._replace(times=chosen.times + reports)

    def _losses(self, start: int, cohort: Examples) -> Tensor:
        """Mean loss of the received model on all training samples of each client, ``[cohort]``."""
        return self.engine.score(cohort, self.received(cohort.ids))[1] / cohort.device_counts

    def _threshold(self, losses: Tensor, weights: Tensor) -> Tensor:
        """The loss at which the tail begins."""
        if self.smoothing:
            return smooth_quantile(losses, weights, self.conformity, self.smoothing)
        return weighted_quantile(losses, weights, 1 - self.conformity)

    def _weights(self, losses: Tensor, weights: Tensor) -> Tensor:
        """Weight of each participant, 0 outside the tail, ``[cohort]``."""
        threshold = self.threshold.cpu()
        if self.tail == "hard":
            return weights * (losses >= threshold)
        return tail_weights(losses, weights, self.conformity, threshold, self.smoothing)
