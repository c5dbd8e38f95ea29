"""The first trained linear layer in dual form, for inputs X that stay the same during the phase.

If W0 is the weight before the phase, the weight and its velocity always have the form ``a W0 + A^T X`` under SGD, with
a number a and one row of A per input; this also holds if a penalty ties the weight to an anchor that begins as W0, even
if the anchor follows the weight, as in pFedMe and FedMac. A penalty along another tensor K that stays, as in SCAFFOLD
and FedDyn, adds ``b K``. So a step only needs the Gram matrix ``X X^T`` and the
earlier gradients of the outputs; both are much smaller than the weight if a client has few samples. The weight itself
is computed once, at the end.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pfl_lightning.client.epochs import Epoch, in_order, out_of_order
from pfl_lightning.client.linear.layer import After, LinearLayer
from pfl_lightning.client.linear.recursion import Recursion, Tie
from pfl_lightning.client.penalties import Slope
from pfl_lightning.client.phase import Phase

STEP_COST = 20  # cost of reading and writing the weight in a step, in multiplications per entry
MARGIN = 0.9  # measured: at a higher ratio of multiplications the dual form is not faster


class Combination(NamedTuple):
    """``a W0 + b K + A^T X`` for every client.

    Attributes:
        of_start: a, ``[clients, 1, 1]``.
        of_still: b, ``[clients, 1, 1]``.
        of_inputs: A, ``[clients, samples, outputs]``; None for zero.
    """

    of_start: Tensor
    of_still: Tensor
    of_inputs: Tensor | None


class DualLayer(LinearLayer):
    """A linear layer whose trained weight is only computed at the end of the phase.

    Args:
        name: The layer's name.
        phase: The phase to run.
        after: What follows it.
        start: The weight before the phase, ``[outputs, inputs]`` or ``[clients, outputs, inputs]``.
        rows: Receives the weight after the phase, ``[clients, outputs, inputs]``.
        tie: The tie of the weight to an anchor that begins as ``start``.
        still: The tensor that stays, if the tie has one, like ``start``.
        copies: Receives the anchor after the phase if it follows the weight, ``[clients, outputs, inputs]``.
    """

    def __init__(
        self,
        name: str,
        phase: Phase,
        after: After,
        start: Tensor,
        rows: Tensor,
        tie: Tie,
        still: Tensor | None,
        copies: Tensor | None,
    ) -> None:
        super().__init__(name, phase, after)
        self.start = start
        self.rows = rows
        self.tie = tie
        self.still = still
        self.copies = copies
        self.epoch: Epoch | None = None
        self.states: list[Combination] = []

    @staticmethod
    def pays(samples: int, weight: Tensor, phase: Phase) -> bool:
        """Whether the dual form is faster than updating the weight in every step, by the number of multiplications.

        Args:
            samples: Samples of the largest client; 0 if its inputs do not stay the same.
            weight: The weight, ``[..., outputs, inputs]``.
            phase: The phase.
        """
        outputs, inputs = weight.shape[-2:]
        visited = phase.visited(samples)
        steps = -(-visited // phase.batch_size)
        folded = (phase.epochs - 1) * (2 if phase.momentum else 1) * samples**2 * outputs
        dual = samples * inputs * (samples + 2 * outputs) + phase.epochs * visited**2 * outputs // 2 + folded
        direct = phase.epochs * outputs * inputs * (2 * visited + STEP_COST * steps)
        return samples > 0 and dual < MARGIN * direct

    def enter(self, epoch: Epoch) -> None:
        """Start an epoch: compute the outputs of its initial weight (and velocity, anchor) for all inputs."""
        if self.epoch is None:
            self._begin(epoch)
            outputs = self.first_outputs  # the velocity is zero, and the anchor is the weight
        else:
            self.states[: self._moving] = self._after(self.epoch)
            outputs = [self._outputs(state) for state in self.states]
        self.epoch = epoch
        self.steps = 0
        self.before = [in_order(output, epoch.order) for output in outputs]
        self.gram_now = in_order(in_order(self.gram, epoch.order).mT, epoch.order)
        self.grads = self.rows.new_zeros(*epoch.present.shape, self.rows.shape[1])

    def _begin(self, epoch: Epoch) -> None:
        """Start the phase: the weight is W0, the velocity zero, the anchor W0, and what stays K."""
        self.inputs = epoch.inputs.flatten(2)
        self.gram = self.inputs @ self.inputs.mT
        self.first_outputs = [self.inputs @ weight.mT for weight in (self.start, self.still) if weight is not None]
        self.recursion = Recursion(self.phase, epoch.present.shape[1], self.tie, self.rows)
        ones = self.rows.new_ones(len(self.rows), 1, 1)
        self.states = [Combination(part * ones, 0 * ones, None) for part in self.recursion.start]
        if self.still is not None:
            self.states[-1] = Combination(0 * ones, ones, None)

    def read(self, clients: int, batch: slice) -> Tensor:
        """Outputs for a batch of the epoch."""
        self.seen = (slice(clients), batch)
        done = batch.start
        scales, of_gradients = self.recursion.weight_at(self.steps, done)
        if len(self.before) < len(scales):  # the first epoch
            still = scales[-1:] if self.still is not None else []
            anchor = scales[len(scales) - len(still) - 1] if self.tie.has_anchor else 0.0
            scales = [scales[0] + anchor, *still]
        gram = self.gram_now[:clients, batch, :done] * of_gradients
        outputs = torch.baddbmm(self.before[0][self.seen], gram, self.grads[:clients, :done], beta=scales[0])
        for before, scale in zip(self.before[1:], scales[1:], strict=True):
            outputs.add_(before[self.seen], alpha=scale)
        self.steps += 1
        return self.activated(outputs)

    def move_weight(self, grad: Tensor, penalty: Slope) -> None:
        """Store the gradient of the outputs, which determines the weight; the recursion accounts for the penalty."""
        self.grads[self.seen] = grad

    def finish(self) -> None:
        """Compute the weight, and the anchor if it has moved."""
        assert self.epoch is not None, "a phase has an epoch"
        states = self._after(self.epoch)
        self._write(states[0], self.rows)
        if self.copies is not None:
            self._write(states[-1], self.copies)

    def _write(self, state: Combination, rows: Tensor) -> None:
        assert state.of_inputs is not None, "an epoch has a step"
        rows.copy_(self.start)
        if self.phase.weight_decay or self.tie.of_weight + self.tie.of_anchor:  # or it is 1
            rows.mul_(state.of_start)
        if self.still is not None:
            rows.addcmul_(state.of_still, self.still)
        rows.baddbmm_(state.of_inputs.mT, self.inputs)

    @property
    def _moving(self) -> int:
        """Number of quantities that change; an anchor that does not follow the weight stays."""
        return len(self.states) - (self.tie.has_anchor and self.copies is None) - (self.still is not None)

    def _after(self, epoch: Epoch) -> list[Combination]:
        """The quantities that change, after an epoch."""
        steps = (-(-epoch.counts // self.phase.batch_size)).clamp(max=self.steps)
        factors, of_gradients = self.recursion.after(steps)
        result = []
        for number in range(self._moving):
            of_epoch = self.grads * of_gradients[..., number, None]
            of_inputs = out_of_order(of_epoch, epoch.order, self.inputs.shape[1])
            of_start = of_still = torch.zeros_like(self.states[0].of_start)
            for factor, state in zip(factors[:, number, :, None, None].unbind(1), self.states, strict=True):
                of_start = of_start + factor * state.of_start
                of_still = of_still + factor * state.of_still
                if state.of_inputs is not None:
                    of_inputs.addcmul_(factor, state.of_inputs)
            result.append(Combination(of_start, of_still, of_inputs))
        return result

    def _outputs(self, state: Combination) -> Tensor:
        """Outputs of a weight for all inputs, ``[clients, samples, outputs]``."""
        outputs = state.of_start * self.first_outputs[0]
        if self.still is not None:
            outputs.addcmul_(state.of_still, self.first_outputs[1])
        return outputs if state.of_inputs is None else outputs.baddbmm_(self.gram, state.of_inputs)
