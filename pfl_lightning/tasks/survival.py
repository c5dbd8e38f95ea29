from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.errors import PflError
from pfl_lightning.score_kind import LOSS
from pfl_lightning.tasks.multi_label import MultiLabel
from pfl_lightning.tasks.own_loss import OwnLoss
from pfl_lightning.tasks.task import AMOUNT, Sums, Task, check_values


class Survival(Task):
    """Each sample has a time, and whether an event happened then or it was last seen without one (censored).

    Targets are ``[samples, 2]``: the event, 1 or 0, and the time. Time is cut into bins, and output b is the logit of
    the hazard, the probability of the event in bin b for a sample that has reached it. The usual loss of a sample is
    the mean of the logistic losses of its bins: 0 in those that it has lived through, and 1 in that of its event. A
    sample that was censored in the first bin counts nothing.

    Clients are scored by their mean loss. The risk of a sample, which metrics such as ``ConcordanceIndex`` get, is
    minus the expected number of bins that it lives through.

    Paper: Andreux et al., "Federated Survival Analysis with Discrete-Time Cox Models", 2020, arXiv:2006.08997.

    Args:
        loss: See ``Task``.
        edges: Times at which one bin ends and the next one begins, in order; the last bin has no end.

    Raises:
        PflError: If they are not in order.
    """

    score = LOSS

    def __init__(self, loss: OwnLoss | None = None, edges: Sequence[NonNegativeFloat] = ()) -> None:
        super().__init__(loss)
        if [*edges] != sorted({*edges}):
            raise PflError(f"model.task.edges must be times in order, each once, got {edges}")
        self.edges = edges
        self.outputs = len(edges) + 1
        self.bins = MultiLabel().sized(self.outputs)  # those after the end are unknown

    def in_place_of(self, task: Task) -> Self:
        """The same task; the number of bins is its own."""
        return self

    @property
    def goal(self) -> str:
        """What networks learn, for people."""
        return f"survival in {self.outputs} bins of time"

    def check(self, targets: Tensor) -> None:
        """Check that the targets are events, 0 or 1, and times from 0, ``[samples, 2]``, and that there is an event."""
        if targets.ndim != 2 or targets.shape[1] != 2:
            raise ValueError(f"targets must have the shape [samples, 2], event and time, got {list(targets.shape)}")
        events, times = targets.unbind(1)
        check_values(events, (events == 0) | (events == 1), "events", "0 for censored or 1")
        check_values(times, (times >= 0) & times.isfinite(), "times", "finite numbers from 0")
        if not events.any():
            raise ValueError("events must be 1 somewhere, got 0 alone: all samples are censored")

    def examples(self) -> tuple[Tensor, Tensor]:
        """An event in each bin, and one sample that is censored in the last."""
        bounds = torch.tensor([*self.edges, 2 * max([1.0, *self.edges])])
        targets = torch.stack([torch.ones_like(bounds), bounds], 1)
        targets = torch.cat([targets, targets[-1:] * torch.tensor([0.0, 1.0])])
        return 2.0 * (self._labels(targets) == 1) - 1, targets

    def labels(self, targets: Tensor) -> Tensor:
        """Whether there was an event."""
        return targets[:, 0].long()

    @property
    def classes(self) -> int:
        """Events, and none."""
        return 2

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean logistic loss of the bins, ``[...]``, of outputs ``[..., bins]`` and targets ``[..., 2]``."""
        return self.bins.usual_losses(outputs, self._labels(targets))

    def usual_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See ``MultiLabel``."""
        return self.bins.usual_gradients(outputs, self._labels(targets))

    def amounts(self, targets: Tensor) -> Tensor:
        """1, or 0 of a sample that was censored in the first bin."""
        return self.bins.amounts(self._labels(targets))

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Whether there was an event."""
        return {"events": targets[:, 0].long()}

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The mean loss."""
        return {LOSS.name: sums[LOSS.name] / sums[AMOUNT]}

    def columns(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The number of events beside the loss."""
        return {"events": sums["events"]}

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """The risk of each sample, ``[samples]``: minus the expected number of bins that it lives through."""
        return -(-outputs).sigmoid().cumprod(-1).sum(-1)

    def _labels(self, targets: Tensor) -> Tensor:
        """What is known of each bin, int8 ``[..., bins]``: 0 if it was lived through, 1 for an event, or -1."""
        events, times = targets.unbind(-1)
        last = torch.searchsorted(targets.new_tensor(self.edges), times.contiguous())[..., None]
        bins = torch.arange(self.outputs, device=targets.device)
        at_end = (bins == last) & (events[..., None] == 1)
        return torch.where(bins < last, 0, torch.where(at_end, 1, -1)).to(torch.int8)
