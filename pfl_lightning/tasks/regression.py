from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import PositiveFloat, Real
from pfl_lightning.errors import PflError
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks.own_loss import OwnLoss
from pfl_lightning.tasks.task import Sums, Task, check_values

RMSE = ScoreKind("rmse", higher_is_better=False, scale=1, unit="", digits=4)
ALIKE = 1e-6  # share of a sum of squares that is left of numbers which are all alike


class Regression(Task):
    """Each sample has one real number, or several.

    A network learns (number - mean) / deviation. The usual loss is half the squared error of that, the mean over the
    outputs; its gradient with respect to the outputs is (output - what it learns) over their number.

    Scores are in the unit of the numbers. Clients are scored by the RMSE, the root of the mean squared error of all
    their numbers. Beside it stand the mean absolute error (MAE) and the mean over the outputs of

        R2 = 1 - sum of (prediction - number)^2 / sum of (number - mean)^2,

    whose mean is that of the client's numbers, and which is not defined where they are all alike.

    Args:
        loss: See ``Task``; it gets outputs of the network, and what they learn.
        mean: What is subtracted, one number for all outputs or one for each.
        deviation: What divides, one number for all outputs or one for each.

    Raises:
        PflError: If mean and deviation differ in length.
    """

    score = RMSE

    def __init__(
        self,
        loss: OwnLoss | None = None,
        mean: Real | Sequence[Real] = 0.0,
        deviation: PositiveFloat | Sequence[PositiveFloat] = 1.0,
    ) -> None:
        super().__init__(loss)
        if np.shape(mean) != np.shape(deviation):
            raise PflError(f"model.task: mean and deviation must be as many numbers, got {mean} and {deviation}")
        self.mean = mean
        self.deviation = deviation

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
        if (given := np.size(self.mean)) not in (1, self.outputs):
            raise ValueError(f"mean and deviation must be 1 number or {self.outputs}, got {given}")
        check_values(targets, targets.isfinite(), "targets", "finite numbers")

    def examples(self) -> tuple[Tensor, Tensor]:
        """Four samples, whose numbers are positive, as some metrics want them."""
        numbers = torch.linspace(0.25, 1, 4 * self.outputs).view(4, self.outputs)
        return self.learned(numbers), numbers.squeeze(-1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See ``Task``; a loss of the user's own gets what networks learn."""
        if self.own_loss is None:
            return self.usual_losses(outputs, targets)
        return self.own_loss(outputs, self.learned(targets.view_as(outputs)).view_as(targets))

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Half the squared error, ``[...]``, of outputs ``[..., outputs]``."""
        return (outputs - self.learned(targets.view_as(outputs))).square().mean(-1) / 2

    def usual_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses, and (output - what it learns) over the number of outputs."""
        errors = outputs - self.learned(targets.view_as(outputs))
        return errors.square().mean(-1) / 2, errors / outputs.shape[-1]

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Squared and absolute errors, and what is learned and its square, ``[samples, outputs]`` each."""
        learned = self.learned(targets.view_as(outputs))
        errors = self._in_units(outputs - learned)
        return {
            "squared_error": errors.square(),
            "absolute_error": errors.abs(),
            "learned": learned,
            "learned_square": learned.square(),
        }

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """RMSE, MAE and R2; of several outputs also the RMSE of each."""
        count = samples[:, None]
        squares = sums["squared_error"]
        spread = sums["learned_square"] - sums["learned"] ** 2 / count
        unexplained = squares / self._in_units(self._in_units(spread))
        r2 = (1 - unexplained).where(spread > ALIKE * sums["learned_square"], torch.nan)
        scores = {
            RMSE.name: (squares / count).mean(1).sqrt(),
            "mae": (sums["absolute_error"] / count).mean(1),
            "r2": r2.mean(1),
        }
        if self.outputs > 1:
            scores |= {f"{RMSE.name}_{output}": (squares[:, output] / samples).sqrt() for output in range(self.outputs)}
        return scores

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """The numbers, like the targets."""
        return (self._in_units(outputs) + _like(self.mean, outputs)).squeeze(-1)

    def learned(self, numbers: Tensor) -> Tensor:
        """What networks learn of numbers, ``[..., outputs]``."""
        return (numbers - _like(self.mean, numbers)) / _like(self.deviation, numbers)

    def _in_units(self, values: Tensor) -> Tensor:
        """Values ``[..., outputs]`` in the unit of the numbers."""
        return values * _like(self.deviation, values)


def _like(numbers: float | Sequence[float], values: Tensor) -> float | Tensor:
    """One number, or one for each output as a tensor like ``values``."""
    return values.new_tensor(numbers) if isinstance(numbers, Sequence) else numbers
