"""A task of your own; see task.md."""

from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.score_kind import ACCURACY, ScoreKind
from pfl_lightning.tasks import Sums, Task, check_values

MEAN_ABSOLUTE_ERROR = ScoreKind("mean_absolute_error", higher_is_better=False, scale=1, unit=" (classes)", digits=3)


class OrdinalRegression(Task):
    """Each sample has one of several ordered classes: output k is the logit of "its class is above k".

    The loss of a sample is the mean of the logistic losses of the outputs. The prediction is the number of outputs
    above 0. Clients are scored by its mean absolute error, in classes.
    """

    score = MEAN_ABSOLUTE_ERROR

    @property
    def classes(self) -> int:
        """One more than there are outputs."""
        return self.outputs + 1

    def in_place_of(self, task: Task) -> Self:
        """The same task for the classes of data."""
        return self.sized(task.classes - 1)

    @property
    def goal(self) -> str:
        """What networks learn, for people."""
        return f"{self.classes} ordered classes"

    def check(self, targets: Tensor) -> None:
        """Check that each target is a class, int64 ``[samples]``."""
        if targets.ndim != 1:
            raise ValueError(f"targets must have the shape [samples], got {list(targets.shape)}")
        if targets.dtype != torch.int64:
            raise ValueError(f"targets must be whole numbers, int64, got {targets.dtype}")
        in_range = (targets >= 0) & (targets < self.classes)
        check_values(targets, in_range, "ordered classes", f"whole numbers from 0 to {self.outputs}")

    def labels(self, targets: Tensor) -> Tensor:
        """The classes."""
        return targets.long()

    def examples(self) -> tuple[Tensor, Tensor]:
        """Two samples of each class."""
        targets = torch.arange(self.classes).repeat(2)
        return 2 * self._above(targets, torch.get_default_dtype()) - 1, targets

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean logistic loss, ``[...]``, of outputs ``[..., outputs]`` and classes ``[...]``."""
        above = self._above(targets, outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs, above, reduction="none").mean(-1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """By how many classes each prediction is off, and whether it is ``correct``."""
        distances = ((outputs > 0).sum(-1) - targets).abs()
        return {"distance": distances, "correct": distances == 0}

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The mean absolute error and the accuracy."""
        return {self.score.name: sums["distance"] / samples, ACCURACY.name: sums["correct"] / samples}

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """The predicted classes, ``[samples]``."""
        return (outputs > 0).sum(-1)

    def _above(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Whether each class is above each threshold, ``[..., outputs]``."""
        return (targets[..., None] > torch.arange(self.outputs, device=targets.device)).to(dtype)
