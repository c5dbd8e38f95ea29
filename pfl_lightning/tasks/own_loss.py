"""The loss of a user's own."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.objects import AnyModule, unwrap_partial

LossFunction = Callable[[Tensor, Tensor], Tensor]

if TYPE_CHECKING:
    OwnLoss = nn.Module | LossFunction
else:

    class _Module(metaclass=AnyModule):
        offered = tuple(getattr(nn, name) for name in nn.modules.loss.__all__)

    OwnLoss = _Module


class PerSample(nn.Module):
    """One of torch's losses as a loss of samples: the mean over what each of them has.

    It receives a single output and its targets as numbers ``[samples]``.

    Args:
        loss: The loss; it is copied.

    Raises:
        PflError: If its reduction is a sum. A step takes the mean anyway.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        if loss.reduction not in ("none", "mean"):
            raise PflError(f"model.task.loss.reduction: {loss.reduction} is not possible; allowed: none, mean")
        self.loss = deepcopy(loss)
        vars(self.loss)["reduction"] = "none"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses, ``[samples]``."""
        if outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
            targets = targets.to(outputs.dtype)
        losses: Tensor = self.loss(outputs, targets)
        return losses if losses.ndim < 2 else losses.flatten(1).mean(1)


def loss_of_samples(loss: Any) -> LossFunction | None:
    """A loss, or a class of losses or ``functools.partial`` of one, as a loss of samples.

    Raises:
        PflError: If it cannot be called, has parameters, which nothing would train, or its reduction is a sum.
    """
    if not (loss is None or callable(loss)):
        raise PflError(f"model.task.loss: {loss!r} is not possible; allowed: a module or a function")
    if isinstance(kind := unwrap_partial(loss), type) and issubclass(kind, nn.Module):
        loss = loss()
    if isinstance(loss, nn.Module) and (names := [name for name, _ in loss.named_parameters()]):
        what = f"{type(loss).__name__} with parameters ({', '.join(names)})"
        raise PflError(
            f"model.task.loss: {what} is not possible, nothing would train them; allowed: a loss without parameters"
        )
    return PerSample(loss) if isinstance(loss, nn.Module) and hasattr(loss, "reduction") else loss


def try_loss(function: LossFunction, name: str, outputs: Tensor, targets: Tensor) -> None:
    """Try a loss of samples before training.

    Args:
        function: The loss.
        name: Its name in errors.
        outputs: Outputs of the network for some samples, ``[samples, outputs]``.
        targets: Their targets, ``[samples, ...]``.

    Raises:
        PflError: If it fails, or does not return one finite loss for each sample that depends on the sample alone.
    """
    zeros = torch.zeros_like(outputs)
    varied = torch.linspace(-1, 1, outputs.numel()).to(outputs).view_as(outputs)
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # about shapes, which the line says itself
        try:
            problem = _problem(function(zeros.requires_grad_(), targets), targets)
            if not problem:
                one_by_one = [function(*sample) for sample in zip(varied.split(1), targets.split(1), strict=True)]
                if not torch.allclose(function(varied, targets), torch.cat(one_by_one), rtol=1e-4, atol=1e-5):
                    problem = "losses that depend on other samples, or on chance"
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
            shapes = " and ".join(f"{tuple(tensor.shape)} ({tensor.dtype})" for tensor in (outputs, targets))
            raise PflError(
                f"model.task.loss: {name} of outputs and targets {shapes} fails: {one_line(error)}"
            ) from error
    if problem:
        raise PflError(f"model.task.loss: {name} returns {problem}; allowed: one finite loss for each sample")


def _problem(losses: object, targets: Tensor) -> str:
    """What is wrong with the losses for outputs of zero; empty if nothing is."""
    if not isinstance(losses, Tensor):
        return f"a {type(losses).__name__}"
    if losses.shape != targets.shape[:1]:
        return f"the shape {tuple(losses.shape)} for {len(targets)} samples"
    if not torch.isfinite(losses).all():
        return f"{losses[~torch.isfinite(losses)][0].item()} for outputs of zero"
    return "" if losses.requires_grad else "losses without a gradient"
