"""A trial of the server's optimizer, so that wrong options of it show before a run starts."""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from pfl_lightning.bounds import NonNegativeFloat, Real
from pfl_lightning.errors import PflError, one_line

ServerOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def try_optimizer(make: ServerOptimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Make the optimizer for parameters like these, and let it take a step.

    Args:
        make: Makes it; options that it is partially applied to are checked one by one.
        parameters: Those of the network; they do not change.

    Raises:
        PflError: If it cannot be made, cannot step as the server does, or has options that are not finite.
    """
    for name, value in getattr(make, "keywords", {}).items():
        if isinstance(value, float):
            try:
                (NonNegativeFloat if name == "lr" else Real)(value)
            except ValueError as error:
                raise PflError(f"model.server_optimizer.{name}: {error}") from None
    copies = [nn.Parameter(torch.zeros_like(parameter)) for parameter in parameters]
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    try:
        make(copies).step()
    except (TypeError, ValueError, RuntimeError) as error:
        raise PflError(f"model.server_optimizer: not possible: {one_line(error)}") from error
