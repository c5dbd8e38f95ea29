import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.score_kind import ACCURACY
from pfl_lightning.tasks.task import Sums, Task, check_values


class Classification(Task):
    """Each sample has one of several classes, counted from 0.

    The usual loss is softmax cross-entropy; for networks with a single output, the logistic loss of the labels 0 and 1.
    Its gradient with respect to the outputs is prediction - target. Clients are scored by their accuracy.

    Args:
        loss: See ``Task``.
    """

    score = ACCURACY
    is_mean = True

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.outputs

    @property
    def goal(self) -> str:
        """What networks learn, for people."""
        return f"{self.classes} classes"

    def check(self, targets: Tensor) -> None:
        """Check that each target is a class, int64 ``[samples]``."""
        if targets.ndim != 1:
            raise ValueError(f"targets must have the shape [samples], got {list(targets.shape)}")
        if targets.dtype != torch.int64:
            raise ValueError(f"targets must be whole numbers, int64, got {targets.dtype}")
        in_range = (targets >= 0) & (targets < self.classes)
        check_values(targets, in_range, "labels", f"whole numbers from 0 to {self.classes - 1}")

    def labels(self, targets: Tensor) -> Tensor:
        """The classes."""
        return targets.long()

    def examples(self) -> tuple[Tensor, Tensor]:
        """Two samples of each class."""
        classes = torch.arange(self.classes).repeat(2)
        return torch.eye(self.classes)[classes], classes

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, ``[...]``, of outputs ``[..., outputs]`` and classes ``[...]``."""
        if outputs.shape[-1] == 1:
            return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets.to(outputs.dtype), reduction="none")
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)

    def usual_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses, and prediction - target."""
        if outputs.shape[-1] == 1:
            return self.usual_losses(outputs, targets), outputs.sigmoid() - targets[..., None]
        log_likelihood = outputs.log_softmax(-1)
        losses = -log_likelihood.gather(-1, targets[..., None])[..., 0]
        gradients = log_likelihood.exp_()
        minus_one = gradients.new_full((), -1).expand(*targets.shape, 1)
        return losses, gradients.scatter_add_(-1, targets[..., None], minus_one)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Whether each prediction is ``correct``."""
        if outputs.shape[-1] == 1:
            return {"correct": (outputs.squeeze(-1) > 0) == (targets == 1)}
        return {"correct": outputs.argmax(-1) == targets}

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The accuracy."""
        return {self.score.name: sums["correct"] / samples}

    def columns(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The number of correct predictions."""
        return {"correct": sums["correct"]}

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """Probabilities of all classes, ``[samples, classes]``, or of class 1 for a metric of two, ``[samples]``."""
        shares = log_probabilities(outputs).exp()
        return shares if takes_classes or shares.shape[-1] > 2 else shares[:, 1]


def log_probabilities(outputs: Tensor) -> Tensor:
    """Log-probabilities of all classes, ``[..., classes]``; a single output is the logit of the second of two."""
    logits = F.pad(outputs, (1, 0)) if outputs.shape[-1] == 1 else outputs
    return logits.log_softmax(-1)


def as_outputs(log_probabilities: Tensor, outputs: int) -> Tensor:
    """The outputs of a network that has so many of them for these probabilities, ``[..., outputs]``."""
    return log_probabilities.diff() if outputs == 1 else log_probabilities
