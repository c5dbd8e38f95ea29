from typing import Any, Literal

import torch
from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, PositiveInt, Share
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.metrics import smooth_quantile, tail_weights, weighted_quantile
from pfl_lightning.server import ClientSums, quantile_from_sums

RESOLUTION = 1e-5  # of a quantile from sums
FORWARD = 1 / 3  # of the time of training on the same samples: a step's backward pass costs twice its forward pass


class DeltaFL(FineTuned, Averaging):
    """FedAvg over the clients that the model serves worst, the tail of their losses; also called Simplicial-FL.

    Rule of a round:

        F_i       = f_i(w) on all training samples of client i, for every participant
        threshold = weighted quantile of the F_i at 1 - conformity
        w_i       = SGD for epochs on f_i, from w, in the tail: where F_i >= threshold
        w         = w - server_lr * (w - sum_i weight_i * w_i), the tail's weights sum to 1

    It minimises the superquantile of the losses: the mean of the largest F_i that hold the share ``conformity`` (the
    paper's theta) of the weight. 1 is FedAvg; a share below the weight of the worst client trains that client alone.

    Paper: Laguel et al., Device Heterogeneity in Federated Learning: A Superquantile Approach, 2020, arXiv:2002.11223,
    Algorithms 1 (``smoothing``, for all clients in each round and a full batch as the local step), 2 and 3 (``sums``).

    Differs: reporting a loss takes a third of the simulated time of training on all samples once, and the tail waits
    for all reports; a deadline is for training alone. The authors' code leaves out updates that are not finite; a loss
    that is not finite ends our run, in one line. With secure sums a round whose tail is a single client is skipped.

    Args:
        conformity: Share of the weight in the tail, above 0 and up to 1.
        tail: ``hard``, as in the paper's experiments; ``dual`` counts the client at the threshold only as far as the
            share needs it: the weights of the superquantile.
        smoothing: Range of losses over which the weights of a dual tail fall to zero, the paper's nu; 0 for none.
        quantile: ``exact``, from the losses; ``sums`` tells the server no loss, and takes up to 101 more sums; clients
            in the tail are logged by both.
        quantile_every: Rounds between two computations of the threshold, unless no loss exceeds it.
        kwargs: Options of the bases.

    Raises:
        PflError: If ``smoothing`` is combined with a hard tail, or ``sums`` with a dual one.
    """

    display_name = "Delta-FL"

    threshold: Tensor

    def __init__(
        self,
        conformity: Share = 0.5,
        tail: Literal["hard", "dual"] = "hard",
        smoothing: NonNegativeFloat = 0.0,
        quantile: Literal["exact", "sums"] = "exact",
        quantile_every: PositiveInt = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if smoothing and tail == "hard":
            raise PflError(f"model.smoothing: {smoothing} is not possible with a hard tail; allowed: 0")
        if quantile == "sums" and tail == "dual":
            raise PflError("model.quantile: sums is not possible with a dual tail; allowed: exact")
        self.conformity = conformity
        self.tail = tail
        self.smoothing = smoothing
        self.quantile = quantile
        self.quantile_every = quantile_every
        self.register_buffer("threshold", torch.zeros(()))  # 0 until there is one

    @property
    def is_baseline(self) -> bool:
        """With a conformity of 1 it is FedAvg."""
        return bool(self.conformity == 1)

    def select_clients(self, batch: Round) -> Round:
        """Choose the clients in the tail of the losses, unless that is everyone."""
        if self.conformity == 1:
            return batch
        losses = self.cohort.map_clients("choosing", self._losses, batch.examples, self.clients, self.engine.dtype)
        self.check_finite(losses)
        uploaded = 0
        threshold = self.threshold.to(losses)  # under bf16-true, the buffer has fewer digits than the losses
        if self.accounting.clock.rounds % self.quantile_every == 0 or threshold == 0 or threshold >= losses.max():
            threshold, uploaded = self._threshold(losses, batch)
            self.threshold.copy_(threshold)
        self.log("train/threshold", threshold)
        weights = batch.weights * (losses >= threshold)
        if self.tail == "dual":
            weights = tail_weights(losses, batch.weights, self.conformity, threshold, self.smoothing)
        chosen = batch._replace(weights=weights).take(weights > 0)
        return chosen._replace(times=chosen.times + self._report_time(batch), uploaded=uploaded)

    def _report_time(self, batch: Round) -> float:
        """Simulated seconds until every participant has reported its loss on all its samples."""
        counts = batch.examples.counts
        passes = counts.numpy() / self.local_sgd.visited(counts).clamp(min=1).numpy()  # over all samples, for an epoch
        return float((batch.times * passes).max() * FORWARD / self.local.epochs)

    def _losses(self, cohort: Examples) -> Tensor:
        """Mean loss of the received model on all training samples of each client, ``[cohort]``."""
        return self.engine.mean_losses(cohort, self.received(cohort.ids))

    def _threshold(self, losses: Tensor, batch: Round) -> tuple[Tensor, int]:
        """The loss at which the tail begins, ``[]``, and the bytes that clients upload for sums to find it."""
        if self.smoothing:
            return smooth_quantile(losses, batch.weights, self.conformity, self.smoothing), 0
        exact = weighted_quantile(losses, batch.weights, 1 - self.conformity)
        if self.quantile == "exact":
            return exact, 0
        key = (batch.seed, "quantile", batch.round_index)
        add_up = ClientSums(self.aggregator, batch.examples.host_ids, batch.weights, key, limit=1 / RESOLUTION)
        quantile = quantile_from_sums(losses, 1 - self.conformity, add_up, RESOLUTION)
        threshold = losses.new_tensor(quantile - 2 * RESOLUTION)  # one for its own error, one for rounding to float32
        self.log("train/threshold_error", quantile - float(exact))
        self.log("train/tail_by_sums", (losses >= threshold).sum().float())
        self.log("train/tail_by_losses", (losses >= exact).sum().float())
        return threshold, add_up.uploaded
