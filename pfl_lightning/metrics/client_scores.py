from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from pfl_lightning.metrics.functional import client_summary
from pfl_lightning.score_kind import LOSS, ScoreKind
from pfl_lightning.tasks import AMOUNT, Task
from pfl_lightning.tree import Tree


class ClientScores(NamedTuple):
    """Sums over the samples of the clients that have some, one entry per client.

    Attributes:
        ids: Client ids, ``[clients]``.
        samples: Number of evaluated samples, ``[clients]``.
        sums: Sums of the ``loss``, of the task's statistics and, if it has amounts, of the ``amount``,
            ``[clients, ...]`` each.
    """

    ids: Tensor
    samples: Tensor
    sums: Tree

    @property
    def mean_losses(self) -> Tensor:
        """Mean loss of each client, ``[clients]``; nan where the amount is 0."""
        return self.sums[LOSS.name] / self.sums.get(AMOUNT, self.samples)


class ClientScore(Metric):
    """The score of each client, with states of one entry per client.

    It is what the task scores clients by, such as the accuracy, or the mean loss. ``compute`` gives its mean,
    sample-weighted mean, standard deviation and worst value over the clients that have samples. Clients whose score is
    not defined, such as an F1 without a positive, are left out of these, and then counted, as ``left_out``. Of a score
    that is no mean over samples, such as an RMSE, ``pooled`` is that of all samples together.

    Args:
        num_clients: Number of clients.
        task: What the targets are.
        score_kind: ``LOSS``; by default the task's own.
    """

    is_differentiable = False
    full_state_update = False

    samples: Tensor

    def __init__(self, num_clients: int, task: Task, score_kind: ScoreKind | None = None) -> None:
        super().__init__()
        self.task = [task]  # in a list, so that it is not part of this metric's state
        self.score_kind = score_kind or task.score
        self.add_state("samples", torch.zeros(num_clients, dtype=torch.int64), dist_reduce_fx="sum")
        outputs, targets = task.examples()
        statistics = task.statistics(outputs, targets)
        if (amounts := task.amounts(targets)) is not None:
            statistics = {**statistics, AMOUNT: amounts}
        self.names = [LOSS.name, *statistics]
        for name, values in {LOSS.name: torch.zeros(1), **statistics}.items():
            dtype = torch.float32 if values.is_floating_point() else torch.int64
            self.add_state(name, torch.zeros(num_clients, *values.shape[1:], dtype=dtype), dist_reduce_fx="sum")

    def update(self, ids: Tensor, samples: Tensor, sums: Tree) -> None:
        """Add the results of some clients.

        Args:
            ids: Client ids, ``[clients]``.
            samples: Number of evaluated samples, ``[clients]``.
            sums: Sums as in ``ClientScores``; none if no client has samples.
        """
        self.samples.index_add_(0, ids, samples)
        for name, values in sums.items():
            state: Tensor = getattr(self, name)
            state.index_add_(0, ids, values.to(state.dtype))

    def compute(self) -> dict[str, Tensor]:
        """``mean``, ``weighted_mean``, ``std`` and ``worst``; also ``pooled`` and ``left_out`` where they differ."""
        scores = self.scores()
        values, samples = self.defined(scores)
        summary = client_summary(values, samples, self.score_kind.higher_is_better)
        if len(values) < len(scores.ids):
            summary["left_out"] = torch.tensor(float(len(self.samples) - len(values)))
        (task,) = self.task
        if self.score_kind == task.score and not task.is_mean:
            sums = {name: values.sum(0, keepdim=True) for name, values in scores.sums.items()}
            (summary["pooled"],) = self.values(ClientScores(scores.ids[:1], scores.samples.sum(0, keepdim=True), sums))
        return summary

    def scores(self) -> ClientScores:
        """Sums of the clients that have samples, in this process unless the states are synchronised."""
        ids = self.samples.nonzero().squeeze(1)
        return ClientScores(ids, self.samples[ids], {name: getattr(self, name)[ids] for name in self.names})

    def values(self, scores: ClientScores) -> Tensor:
        """The score of each client, ``[clients]``."""
        (task,) = self.task
        if self.score_kind == LOSS:
            return scores.mean_losses
        return task.scores(scores.sums, scores.samples)[self.score_kind.name]

    def defined(self, scores: ClientScores) -> tuple[Tensor, Tensor]:
        """The scores and the samples of the clients whose score is defined, ``[clients]`` each.

        A score that is nan because the loss is, as in a run that diverges, is not left out.
        """
        values = self.values(scores)
        is_defined = ~(values.isnan() & scores.sums[LOSS.name].isfinite())
        return values[is_defined], scores.samples[is_defined]

    def columns(self, scores: ClientScores) -> dict[str, Tensor]:
        """What a table says of each client, ``[clients]`` each: its samples, its scores, and its mean loss."""
        (task,) = self.task
        counts = {"client": scores.ids, "samples": scores.samples}
        return {
            **counts,
            **task.columns(scores.sums, scores.samples),
            LOSS.name: scores.mean_losses,
        }
