from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import PositiveFloat
from pfl_lightning.errors import PflError
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks.own_loss import OwnLoss
from pfl_lightning.tasks.task import Sums, Task, check_values

MACRO_F1 = ScoreKind("macro_f1", higher_is_better=True, scale=100, unit=" (%)", digits=1)


class MultiLabel(Task):
    """Each sample has any number of several labels: its targets are 1, 0, or -1 where it is unknown.

    The usual loss of a sample is the mean of the logistic losses of its known labels; its gradient with respect to
    their outputs is (sigmoid - target) over their number. A sample without a known label counts nothing: its amount
    is 0. A label is predicted where its output is above 0.

    Clients are scored by their macro F1: the mean of 2 TP / (2 TP + FP + FN) over the labels that one of the client's
    samples has; a client without such a label has no score. Beside it stand the micro F1, of the counts of all labels,
    and the Hamming loss, the share of wrong predictions among those of known labels.

    Args:
        loss: See ``Task``.
        pos_weight: For each label, the weight in the usual loss of samples that have it; others have 1. Default: 1.

    Raises:
        PflError: If there are weights for a loss of the user's own, which does not see them.
    """

    score = MACRO_F1

    def __init__(self, loss: OwnLoss | None = None, pos_weight: Sequence[PositiveFloat] | None = None) -> None:
        super().__init__(loss)
        if loss is not None and pos_weight is not None:
            raise PflError("model.task.pos_weight must be null with model.task.loss, which does not see it")
        self.pos_weight = pos_weight

    @property
    def classes(self) -> int:
        """A class for each label, and one for samples without any."""
        return self.outputs + 1

    @property
    def goal(self) -> str:
        """What networks learn, for people."""
        return f"{self.outputs} labels"

    def check(self, targets: Tensor) -> None:
        """Check that the targets are 0, 1 or -1, int8 ``[samples, labels]``, and that one is known."""
        if targets.ndim != 2 or targets.shape[1] != self.outputs:
            raise ValueError(f"targets must have the shape [samples, {self.outputs}], got {list(targets.shape)}")
        if targets.dtype != torch.int8:
            raise ValueError(f"targets must be whole numbers, int8, got {targets.dtype}")
        check_values(targets, (targets >= -1) & (targets <= 1), "targets", "0, 1 or -1 for unknown")
        if self.pos_weight is not None and len(self.pos_weight) != self.outputs:
            raise ValueError(f"pos_weight must be {self.outputs} numbers, one for each label, got {self.pos_weight}")
        if (targets == -1).all():
            raise ValueError("targets must be 0 or 1 somewhere, got -1 alone")

    def labels(self, targets: Tensor) -> Tensor:
        """The rarest label that each sample has, or the last class if it has none; of equally rare ones the first."""
        is_positive = targets == 1
        rarest_first = is_positive.sum(0).argsort(stable=True)
        ranks = rarest_first.argsort().where(is_positive, self.outputs).amin(1)
        return torch.cat([rarest_first, rarest_first.new_tensor([self.outputs])])[ranks]

    def examples(self) -> tuple[Tensor, Tensor]:
        """For each label a sample that has no other, and one that has all others."""
        alone = torch.eye(self.outputs, dtype=torch.int8)
        targets = torch.cat([alone, 1 - alone])
        return 2 * targets.to(torch.get_default_dtype()) - 1, targets

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean logistic loss of the known labels, ``[...]``, of outputs and targets ``[..., labels]``."""
        return _weighted(outputs, targets, self._shares(targets, outputs))

    def usual_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses, and (sigmoid - target) over the number of known labels, 0 for unknown ones."""
        shares = self._shares(targets, outputs)
        return _weighted(outputs, targets, shares), (outputs.sigmoid() - targets) * shares

    def amounts(self, targets: Tensor) -> Tensor:
        """1, or 0 of a sample without a known label."""
        return (targets >= 0).any(-1).long()

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Whether the prediction of each label is a true or a false positive or negative, ``[samples, labels]``."""
        is_predicted = outputs > 0
        has, lacks = targets == 1, targets == 0
        return {
            "true_positives": is_predicted & has,
            "false_positives": is_predicted & lacks,
            "false_negatives": ~is_predicted & has,
            "true_negatives": ~is_predicted & lacks,
        }

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The macro F1, the micro F1 and the Hamming loss; nan where there is nothing to divide by."""
        hits = sums["true_positives"]
        misses = sums["false_negatives"]
        wrong = sums["false_positives"] + misses
        is_held = hits + misses > 0
        of_labels = (f1(hits, wrong) * is_held).nan_to_num(0)
        known = hits + wrong + sums["true_negatives"]
        return {
            MACRO_F1.name: of_labels.sum(1) / is_held.sum(1),
            "micro_f1": f1(hits.sum(1), wrong.sum(1)),
            "hamming_loss": wrong.sum(1) / known.sum(1),
        }

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """The probability of each label, ``[samples, labels]``."""
        return outputs.sigmoid()

    def _shares(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """The weight of each label in the loss of its sample, ``[..., labels]``, 0 where it is unknown."""
        is_known = targets >= 0
        shares = is_known.to(outputs.dtype) / is_known.sum(-1, keepdim=True).clamp(min=1)
        if self.pos_weight is None:
            return shares
        return torch.where(targets == 1, shares * outputs.new_tensor(self.pos_weight), shares)


def _weighted(outputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """The sum of the labels' logistic losses with these weights, ``[...]``."""
    is_positive = (targets == 1).to(outputs.dtype)
    losses = F.binary_cross_entropy_with_logits(outputs, is_positive, reduction="none")
    return (losses * shares).sum(-1)


def f1(hits: Tensor, wrong: Tensor) -> Tensor:
    """F1 of true positives and of wrong predictions; nan if there are neither."""
    return 2 * hits / (2 * hits + wrong)
