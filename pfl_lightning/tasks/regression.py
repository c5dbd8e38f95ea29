import torch
from torch import Tensor

from pfl_lightning.score_kind import LOSS
from pfl_lightning.tasks.task import Sums, Task, check_values


class Regression(Task):
    """Each sample has one real number, or several.

    The usual loss is half the squared error, the mean over the outputs; its gradient with respect to the outputs is
    (prediction - target) over their number. Clients are scored by their mean loss.

    Args:
        loss: See ``Task``.
    """

    score = LOSS

    @property
    def goal(self) -> str:
        """What networks learn, for people."""
        return "a regression" if self.outputs == 1 else f"a regression of {self.outputs} numbers"

    def check(self, targets: Tensor) -> None:
        """Check that the targets are finite numbers, ``[samples]`` for a single output or ``[samples, outputs]``."""
        expected = (len(targets),) if self.outputs == 1 else (len(targets), self.outputs)
        if targets.shape != expected:
            shape = "[samples]" if self.outputs == 1 else f"[samples, {self.outputs}]"
            raise ValueError(f"targets must have the shape {shape}, got {list(targets.shape)}")
        if not targets.is_floating_point():
            raise ValueError(f"targets must be real numbers, got {targets.dtype}")
        check_values(targets, targets.isfinite(), "targets", "finite numbers")

    def examples(self) -> tuple[Tensor, Tensor]:
        """Four samples, whose numbers are positive, as some metrics want them."""
        numbers = torch.linspace(0.25, 1, 4 * self.outputs).view(4, self.outputs)
        return numbers, numbers.squeeze(-1)

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Half the squared error, ``[...]``, of outputs ``[..., outputs]``."""
        if outputs.shape[-1] == 1:
            return (outputs.squeeze(-1) - targets).square() / 2
        return (outputs - targets).square().mean(-1) / 2

    def usual_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses, and (prediction - target) over the number of outputs."""
        count = outputs.shape[-1]
        errors = outputs - targets.view_as(outputs)
        return self.usual_losses(outputs, targets), errors if count == 1 else errors / count

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """None beside the loss."""
        return {}

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The mean loss."""
        return {self.score.name: sums[self.score.name] / samples}

    def columns(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """Nothing beside the loss."""
        return {}

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """The numbers, like the targets."""
        return outputs.squeeze(-1)
