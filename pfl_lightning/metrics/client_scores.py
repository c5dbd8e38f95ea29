from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from pfl_lightning.metrics.functional import client_summary
from pfl_lightning.score_kind import ACCURACY, ScoreKind


class ClientScores(NamedTuple):
    """Scores of the clients that have samples, one entry per client.

    Attributes:
        ids: Client ids, ``[clients]``.
        samples: Number of evaluated samples, ``[clients]``.
        correct: Number of correct predictions, ``[clients]``.
        loss: Mean loss, ``[clients]``.
    """

    ids: Tensor
    samples: Tensor
    correct: Tensor
    loss: Tensor


class ClientScore(Metric):
    """The score of each client, with states of one entry per client.

    It is the accuracy, correct_i / samples_i for client i, in [0, 1], or for data without classes the mean loss, in
    [0, inf). ``compute`` gives its mean, sample-weighted mean, standard deviation and worst value over the clients that
    have samples.

    Args:
        num_clients: Number of clients.
        score_kind: ``ACCURACY`` or ``LOSS``.
    """

    is_differentiable = False
    full_state_update = False

    samples: Tensor
    correct: Tensor
    loss: Tensor

    def __init__(self, num_clients: int, score_kind: ScoreKind) -> None:
        super().__init__()
        self.score_kind = score_kind
        for name, dtype in (("samples", torch.int64), ("correct", torch.int64), ("loss", torch.float32)):
            self.add_state(name, torch.zeros(num_clients, dtype=dtype), dist_reduce_fx="sum")

    def values(self, scores: ClientScores) -> Tensor:
        """The score of each client, ``[clients]``."""
        return scores.correct / scores.samples if self.score_kind == ACCURACY else scores.loss

    def update(self, ids: Tensor, samples: Tensor, correct: Tensor, loss: Tensor) -> None:
        """Add the results of some clients.

        Args:
            ids: Client ids, ``[clients]``.
            samples: Number of evaluated samples, ``[clients]``.
            correct: Number of correct predictions, ``[clients]``.
            loss: Sum of the losses, ``[clients]``.
        """
        self.samples.index_add_(0, ids, samples)
        self.correct.index_add_(0, ids, correct)
        self.loss.index_add_(0, ids, loss.to(self.loss.dtype))

    def compute(self) -> dict[str, Tensor]:
        """``mean``, ``weighted_mean``, ``std`` and ``worst`` of the score."""
        scores = self.scores()
        return client_summary(self.values(scores), scores.samples, self.score_kind.higher_is_better)

    def scores(self) -> ClientScores:
        """Scores of the clients that have samples, in this process unless the states are synchronised."""
        ids = self.samples.nonzero().squeeze(1)
        samples = self.samples[ids]
        return ClientScores(ids, samples, self.correct[ids], self.loss[ids] / samples)
