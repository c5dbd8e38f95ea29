"""SGD as a linear recursion of a weight, its velocity and the anchor that it is pulled to.

With the gradient g of a step, momentum m, weight decay d and a pull p towards an anchor C, a step of rate r is::

    V' = m V + g + d W + p (W - C)
    W' = W - r V'

so that (W', V', C) is a fixed matrix times (W, V, C), plus (-r, 1, 0) g: what a gradient does to the weight so many
steps later is a power of that matrix.
"""

import torch
from torch import Tensor

from pfl_lightning.client.phase import Phase


class Recursion:
    """What weight and velocity keep, and how a gradient acts later.

    Its quantities are the weight, the velocity if there is momentum, and the anchor if there is a pull, in this order.

    Args:
        phase: The rates.
        samples: Samples that an epoch visits.
        pull: Strength of the pull towards the anchor.
        like: A tensor whose device and type the factors take.

    Attributes:
        start: The quantities at the start of a phase as multiples of the weight there, which is the anchor.
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
        """How the weight before a step depends on the quantities, and the gradients, since the epoch began.

        Args:
            step: Number of the step in the epoch.
            samples: How many samples came before it.

        Returns:
            The factor of each quantity, and those of each sample's gradient, ``[samples]``.
        """
        return self._scales[step], self._line[len(self._line) - samples :]

    def after(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """How the quantities after an epoch depend on it, at clients that took so many steps, ``[clients]``.

        Returns:
            Their factors, ``[clients, quantities, quantities]``, and those of each sample's gradient,
            ``[clients, samples, quantities]``.
        """
        since = steps[:, None] - 1 - self.step_of
        return self._powers[steps], self._answers[since.clamp(min=0)] * (since >= 0)[..., None]
