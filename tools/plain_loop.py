"""What every plain loop over clients does, in torch alone: benchmarks, peers and the tests' oracles share it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def train(
    optimizer: Optimizer,
    batches: Iterable[Any],
    loss_of: Callable[..., Tensor],
    before_step: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
) -> None:
    """Take a step for each mini-batch.

    Args:
        optimizer: Holds the parameters.
        batches: Arguments of ``loss_of``, such as inputs and targets.
        loss_of: The loss of a mini-batch.
        before_step: Called when the gradients are there.
        after_step: Called when the parameters have moved.
    """
    for batch in batches:
        optimizer.zero_grad()
        loss_of(*batch).backward()
        before_step()
        optimizer.step()
        after_step()


def weighted_mean(models: Iterable[tuple[Any, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Sum of models times their weights, one model after another."""
    total: dict[str, Tensor] = {}
    for weight, model in models:
        for name, tensor in model.items():
            total[name] = total[name] + weight * tensor if name in total else weight * tensor
    return total
