from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from pfl_lightning.metrics.functional import client_summary


class ClientScores(NamedTuple):
    """The clients that have samples, one row each.

    Attributes:
        ids: Client ids, ``[clients]``.
        samples: Samples judged, ``[clients]``.
        correct: Correct predictions, ``[clients]``.
        loss: Mean loss, ``[clients]``.
    """

    ids: Tensor
    samples: Tensor
    correct: Tensor
    loss: Tensor

    @property
    def accuracy(self) -> Tensor:
        """Share of correct predictions, in [0, 1], ``[clients]``."""
        return self.correct / self.samples


class ClientAccuracy(Metric):
    """Accuracy of every client, in one state per quantity with one entry per client.

    Formula: correct_i / samples_i for client i; range [0, 1]. ``compute`` gives its mean, sample-weighted mean,
    standard deviation and worst value over the clients that have samples.

    Args:
        num_clients: Number of clients.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    samples: Tensor
    correct: Tensor
    loss: Tensor

    def __init__(self, num_clients: int) -> None:
        super().__init__()
        for name, dtype in (("samples", torch.int64), ("correct", torch.int64), ("loss", torch.float32)):
            self.add_state(name, torch.zeros(num_clients, dtype=dtype), dist_reduce_fx="sum")

    def update(self, ids: Tensor, samples: Tensor, correct: Tensor, loss: Tensor) -> None:
        """Add the results of some clients.

        Args:
            ids: Client ids, ``[clients]``.
            samples: Samples judged, ``[clients]``.
            correct: Correct predictions, ``[clients]``.
            loss: Sum of the losses, ``[clients]``.
        """
        self.samples.index_add_(0, ids, samples)
        self.correct.index_add_(0, ids, correct)
        self.loss.index_add_(0, ids, loss.to(self.loss.dtype))

    def compute(self) -> dict[str, Tensor]:
        """``mean``, ``weighted_mean``, ``std`` and ``worst`` of the accuracy."""
        scores = self.scores()
        return client_summary(scores.accuracy, scores.samples)

    def scores(self) -> ClientScores:
        """The clients that have samples; of one process only, unless the states are synchronised."""
        ids = self.samples.nonzero().squeeze(1)
        samples = self.samples[ids]
        return ClientScores(ids, samples, self.correct[ids], self.loss[ids] / samples)
