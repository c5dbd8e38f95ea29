from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = tuple[Tensor, ...]  # passed from step to step, [batch, hidden] each; the output comes first


class Recurrent(nn.RNNBase, ABC):
    """A recurrent layer in basic operations, with the parameters and initialisation of torch's layer.

    Evaluation needs it, because ``vmap`` cannot run torch's fused layers without gradients.

    Args:
        input_size: Features of one step.
        hidden_size: Width of the hidden state in each direction.
        num_layers: Number of stacked layers.
        dropout: Probability of dropping a unit between two layers.
        bidirectional: Whether each layer also runs backwards in time.
        every_step: Whether the outputs are the states after all steps, not after the last one.
    """

    mode_name: ClassVar[str]
    state_size: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = False,
        every_step: bool = False,
    ) -> None:
        super().__init__(self.mode_name, input_size, hidden_size, num_layers, True, True, dropout, bidirectional)
        self.every_step = every_step
        self.between = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, present: Tensor | None = None) -> Tensor:
        """Last hidden state of the last layer, as torch computes it for packed sequences, or all of them.

        Args:
            inputs: ``[batch, time, features]``.
            present: Which steps are real, ``[batch, time]``; padding is at the end. All of them when None.

        Returns:
            The state after the last real step, followed by that of the backward direction,
            ``[batch, directions * hidden]``; or those after all steps, ``[batch, time, directions * hidden]``.
        """
        masks = None if present is None else present.unsqueeze(-1).unbind(1)
        directions = (False, True) if self.bidirectional else (False,)
        weights = iter(self.all_weights)
        runs: list[list[Tensor]] = []
        for _ in range(self.num_layers):
            if runs:
                inputs = self.between(_joined(runs))
            runs = [self._run(inputs, masks, next(weights), backwards) for backwards in directions]
        if self.every_step:
            return _joined(runs)
        return torch.cat([run[0 if backwards else -1] for run, backwards in zip(runs, directions, strict=True)], -1)

    def _run(
        self, inputs: Tensor, masks: Sequence[Tensor] | None, weights: Sequence[Tensor], backwards: bool
    ) -> list[Tensor]:
        """Outputs ``[batch, hidden]`` of one layer in one direction, in the order of time."""
        weight_ih, weight_hh, bias_ih, bias_hh = weights
        projected = F.linear(inputs, weight_ih, bias_ih).unbind(1)
        state: State = (projected[0].new_zeros(inputs.shape[0], self.hidden_size),) * self.state_size
        outputs = []
        for time in reversed(range(len(projected))) if backwards else range(len(projected)):
            after = self.step(projected[time], state, weight_hh, bias_hh)
            if masks is not None:
                after = tuple(torch.where(masks[time], *states) for states in zip(after, state, strict=True))
            state = after
            outputs.append(state[0])
        return outputs[::-1] if backwards else outputs

    @abstractmethod
    def step(self, projected: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
        """One step in time.

        Args:
            projected: The step's inputs times their weights, ``[batch, gates * hidden]``.
            state: The state before the step.
            weight: The state's weights, ``[gates * hidden, hidden]``.
            bias: Their bias, ``[gates * hidden]``.

        Returns:
            The state after the step.
        """


def _joined(runs: list[list[Tensor]]) -> Tensor:
    """Outputs ``[batch, hidden]`` of all directions and times, ``[batch, time, directions * hidden]``."""
    return torch.cat([torch.stack(run, 1) for run in runs], -1)


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997); the state is ``hidden, cell``.

    The gates are those of ``torch.nn.LSTM``.
    """

    mode_name = "LSTM"
    state_size = 2

    def step(self, projected: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
        """One step in time."""
        hidden, cell = state
        input_gate, forget_gate, candidate, output_gate = (projected + F.linear(hidden, weight, bias)).chunk(4, -1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        return output_gate.sigmoid() * cell.tanh(), cell


class GRU(Recurrent):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078); the gates are those of ``torch.nn.GRU``."""

    mode_name = "GRU"
    state_size = 1

    def step(self, projected: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
        """One step in time."""
        (hidden,) = state
        sizes = [2 * self.hidden_size, self.hidden_size]
        input_gates, input_part = projected.split(sizes, -1)
        hidden_gates, hidden_part = F.linear(hidden, weight, bias).split(sizes, -1)
        reset, update = (input_gates + hidden_gates).sigmoid().chunk(2, -1)
        candidate = (input_part + reset * hidden_part).tanh()
        return (candidate.lerp(hidden, update),)
