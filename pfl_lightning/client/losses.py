"""The losses of samples as the engine takes them: for several clients at once."""

import torch
from torch import Tensor

from pfl_lightning.tasks import LossFunction, Task


class Loss:
    """A loss of samples for several clients at once; its gradients are autograd's.

    Args:
        function: Losses ``[samples]`` of outputs and targets, ``[samples, ...]`` both; it knows nothing of clients.
    """

    def __init__(self, function: LossFunction) -> None:
        self.function = function

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses ``[clients, batch]`` for outputs and targets, ``[clients, batch, ...]`` both."""
        return self.function(outputs.flatten(0, 1), targets.flatten(0, 1)).view(targets.shape[:2])

    def with_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses, and their gradients with respect to the outputs, ``[clients, batch, ...]``."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            losses = self(leaf, targets)
            (gradients,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradients.contiguous()  # where they are one number for all, too


class UsualLoss(Loss):
    """The usual loss of a task, with its gradients by formula where the task has one.

    Args:
        task: The task.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task.usual_losses)
        self.task = task

    def with_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Loss``."""
        return self.task.usual_gradients(outputs, targets) or super().with_gradients(outputs, targets)


def loss_of(task: Task) -> Loss:
    """The loss of a task: the user's own one, or the usual one."""
    return UsualLoss(task) if task.own_loss is None else Loss(task.losses)
