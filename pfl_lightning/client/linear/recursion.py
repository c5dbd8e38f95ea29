"""SGD as a linear recursion of a weight, its velocity and the anchor that it is pulled towards.

With gradient g, momentum m, weight decay d, a pull of strength p towards an anchor C, and learning rate r, a step is::

    V' = m V + g + d W + p (W - C)
    W' = W - r V'

so (W', V', C) is a fixed matrix times (W, V, C), plus (-r, 1, 0) g. Powers of that matrix tell how a gradient affects
the weight some steps later.
"""

import torch
from torch import Tensor

from pfl_lightning.client.phase import Phase


class Recursion:
    """Coefficients that give weight and velocity after some steps from their initial values and the gradients.

    The quantities are the weight, the velocity if there is momentum, and the anchor if there is a pull, in this order.

    Args:
        phase: The phase, with its rates.
        samples: Samples that an epoch visits.
        pull: Strength of the pull towards the anchor.
        like: A tensor with the device and type that the coefficients should have.

    Attributes:
        start: The quantities at the start of a phase, as multiples of the initial weight, which is also the anchor.
    """

    def __init__(self, phase: Phase, samples: int, pull: float, like: Tensor) -> None:
        lr, momentum, decay = phase.lr, phase.momentum, phase.weight_decay + pull
        batch_size = min(phase.batch_size, samples)
        self.step_of = torch.arange(samples, device=like.device) // batch_size
        chosen = [0, *([1] if momentum else []), *([2] if pull else [])]
        full = [[1 - lr * decay, -lr * momentum, lr * pull], [decay, momentum, -pull], [0.0, 0.0, 1.0]]
        step = torch.tensor(full, dtype=torch.float64)[chosen][:, chosen]
        self.start = [(1.0, 0.0, 1.0)[quantity] for quantity in chosen]
        powers = [torch.eye(len(chosen), dtype=torch.float64)]
        for _ in range(-(-samples // batch_size)):
            powers.append(step @ powers[-1])
        answers = torch.stack(powers) @ torch.tensor([-lr, 1.0, 0.0], dtype=torch.float64)[chosen]
        self._scales: list[list[float]] = [power[0].tolist() for power in powers]
        self._line = answers[:-1, 0].flip(0).repeat_interleave(batch_size).to(like)
        self._powers, self._answers = torch.stack(powers).to(like), answers.to(like)

    def weight_at(self, step: int, samples: int) -> tuple[list[float], Tensor]:
        """Coefficients of the weight before a step.

        Args:
            step: Number of the step in the epoch.
            samples: Number of samples visited before it in the epoch.

        Returns:
            Coefficient of each quantity at the start of the epoch, and of each sample's gradient, ``[samples]``.
        """
        return self._scales[step], self._line[len(self._line) - samples :]

    def after(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of the quantities after an epoch in which the clients took ``steps`` steps, ``[clients]``.

        Returns:
            Those of the quantities before it, ``[clients, quantities, quantities]``, and those of each sample's
            gradient, ``[clients, samples, quantities]``.
        """
        since = steps[:, None] - 1 - self.step_of
        return self._powers[steps], self._answers[since.clamp(min=0)] * (since >= 0)[..., None]
