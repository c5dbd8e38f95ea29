"""SGD as a linear recursion of a weight, its velocity and the anchor that it is tied to.

With gradient g, momentum m, weight decay d, learning rate r, and a penalty with the gradient p W + q C + s K for an
anchor C that moves a fraction f of the way to the weight after each step, and a tensor K that stays, a step is:

    V' = m V + g + d W + p W + q C + s K
    W' = W - r V'
    C' = C + f (W' - C)
    K' = K

so (W', V', C', K') is a fixed matrix times (W, V, C, K), plus (-r, 1, -f r, 0) g. Powers of that matrix tell how a
gradient affects the weight some steps later.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pfl_lightning.client.phase import Phase


class Tie(NamedTuple):
    """How a weight is tied to an anchor that starts as the weight itself; by default not at all.

    Attributes:
        of_weight: Factor of the weight in the gradient of the penalty, p.
        of_anchor: Factor of the anchor in it, q.
        follows: Fraction of the way to the weight that the anchor moves after each step, f.
        of_still: Factor of a tensor that stays in the gradient of the penalty, s.
    """

    of_weight: float = 0.0
    of_anchor: float = 0.0
    follows: float = 0.0
    of_still: float = 0.0

    @property
    def has_anchor(self) -> bool:
        """Whether there is an anchor that matters."""
        return self.of_anchor != 0 or self.follows != 0


class Recursion:
    """Coefficients that give weight, velocity and anchor after some steps from their initial values and the gradients.

    The quantities are the weight, the velocity if there is momentum, the anchor if there is one, and the tensor that
    stays if there is one, in this order.

    Args:
        phase: The phase, with its rates.
        samples: Samples that an epoch visits.
        tie: The tie to the anchor.
        like: A tensor with the device and type that the coefficients should have.

    Attributes:
        start: The quantities at the start of a phase, as multiples of the initial weight, which is also the anchor.
    """

    def __init__(self, phase: Phase, samples: int, tie: Tie, like: Tensor) -> None:
        lr = phase.lr
        batch_size = min(phase.batch_size, samples)
        self.step_of = torch.arange(samples, device=like.device) // batch_size
        chosen = [0, *[1] * bool(phase.momentum), *[2] * tie.has_anchor, *[3] * bool(tie.of_still)]
        same = torch.eye(4, dtype=torch.float64)
        decay = phase.weight_decay + tie.of_weight
        velocity = torch.tensor([decay, phase.momentum, tie.of_anchor, tie.of_still], dtype=same.dtype)
        weight = same[0] - lr * velocity
        step = torch.stack([weight, velocity, torch.lerp(same[2], weight, tie.follows), same[3]])[chosen][:, chosen]
        effect = torch.tensor([-lr, 1.0, -lr * tie.follows, 0.0], dtype=same.dtype)[chosen]
        self.start = [(1.0, 0.0, 1.0, 0.0)[quantity] for quantity in chosen]
        powers = [torch.eye(len(chosen), dtype=same.dtype)]
        for _ in range(-(-samples // batch_size)):
            powers.append(step @ powers[-1])
        answers = torch.stack(powers) @ effect
        self._scales: list[list[float]] = [power[0].tolist() for power in powers]
        self._line = answers[:-1, 0].flip(0).repeat_interleave(batch_size).to(like, non_blocking=True)
        self._powers, self._answers = (table.to(like, non_blocking=True) for table in (torch.stack(powers), answers))

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
            Coefficients of the quantities before the epoch, ``[clients, quantities, quantities]``, and of each sample's
            gradient, ``[clients, samples, quantities]``.
        """
        since = steps[:, None] - 1 - self.step_of
        return self._powers[steps], self._answers[since.clamp(min=0)] * (since >= 0)[..., None]
