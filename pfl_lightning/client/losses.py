"""The losses of samples: the standard one, by formula, and a user's own.

The standard loss is chosen by the type of the targets and the number of outputs, and its gradient is always prediction
- target. Floating-point targets: half the squared error of the single output. Class labels with one output: logistic
loss of the labels 0 and 1. Class labels with several outputs: softmax cross-entropy.
"""

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.objects import AnyModule, unwrap_partial

LossFunction = Callable[[Tensor, Tensor], Tensor]

if TYPE_CHECKING:
    OwnLoss = nn.Module | LossFunction
else:

    class _Module(metaclass=AnyModule):
        offered = tuple(getattr(nn, name) for name in nn.modules.loss.__all__)

    OwnLoss = _Module


def sample_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The standard loss of each sample.

    Args:
        outputs: ``[..., outputs]``.
        targets: Class labels, or floating-point targets of a regression, ``[...]``.

    Returns:
        Losses, ``[...]``.
    """
    if targets.is_floating_point():
        return (outputs.squeeze(-1) - targets).square() / 2
    if outputs.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets.to(outputs.dtype), reduction="none")
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)


def log_probabilities(outputs: Tensor) -> Tensor:
    """Log-probabilities of all classes, ``[..., classes]``; a single output is the logit of the second of two."""
    logits = F.pad(outputs, (1, 0)) if outputs.shape[-1] == 1 else outputs
    return logits.log_softmax(-1)


def as_outputs(log_probabilities: Tensor, outputs: int) -> Tensor:
    """The outputs of a network that has so many of them for these probabilities, ``[..., outputs]``."""
    return log_probabilities.diff() if outputs == 1 else log_probabilities


@dataclass(frozen=True)
class Loss:
    """A loss of samples as the engine takes it, for several clients at once; its gradients are autograd's.

    Attributes:
        function: Losses ``[samples]`` of outputs ``[samples, outputs]`` and targets ``[samples]``; it knows nothing of
            clients.
    """

    function: LossFunction

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses ``[clients, batch]`` for outputs ``[clients, batch, outputs]`` and targets ``[clients, batch]``."""
        return self.function(outputs.flatten(0, 1), targets.flatten()).view_as(targets)

    def with_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses, and their gradients with respect to the outputs, ``[clients, batch, outputs]``."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            losses = self(leaf, targets)
            (gradients,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradients.contiguous()  # where they are one number for all, too


class StandardLoss(Loss):
    """The standard loss, with its gradients by formula."""

    def with_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Loss``."""
        if targets.is_floating_point():
            return self(outputs, targets), outputs - targets[..., None]
        if outputs.shape[-1] == 1:
            return self(outputs, targets), outputs.sigmoid() - targets[..., None]
        log_likelihood = outputs.log_softmax(-1)
        losses = -log_likelihood.gather(-1, targets[..., None])[..., 0]
        gradients = log_likelihood.exp_()
        minus_one = gradients.new_full((), -1).expand(*targets.shape, 1)
        return losses, gradients.scatter_add_(-1, targets[..., None], minus_one)


STANDARD = StandardLoss(sample_losses)


class PerSample(nn.Module):
    """One of torch's losses as a loss of samples; it receives a single output and its targets as numbers ``[samples]``.

    Args:
        loss: The loss; it is copied.

    Raises:
        PflError: If its reduction is a sum. A step takes the mean anyway.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        if loss.reduction not in ("none", "mean"):
            raise PflError(f"model.loss.reduction: {loss.reduction} is not possible; allowed: none, mean")
        self.loss = deepcopy(loss)
        vars(self.loss)["reduction"] = "none"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses, ``[samples]``."""
        if outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
            targets = targets.to(outputs.dtype)
        losses: Tensor = self.loss(outputs, targets)
        return losses


def loss_of_samples(loss: Any) -> LossFunction | None:
    """A loss, or a class of losses or ``functools.partial`` of one, as a loss of samples.

    Raises:
        PflError: If it cannot be called, has parameters, which nothing would train, or its reduction is a sum.
    """
    if not (loss is None or callable(loss)):
        raise PflError(f"model.loss: {loss!r} is not possible; allowed: a module or a function")
    if isinstance(kind := unwrap_partial(loss), type) and issubclass(kind, nn.Module):
        loss = loss()
    if isinstance(loss, nn.Module) and (names := [name for name, _ in loss.named_parameters()]):
        what = f"{type(loss).__name__} with parameters ({', '.join(names)})"
        raise PflError(
            f"model.loss: {what} is not possible, nothing would train them; allowed: a loss without parameters"
        )
    return PerSample(loss) if isinstance(loss, nn.Module) and hasattr(loss, "reduction") else loss


def try_loss(function: LossFunction, name: str, outputs: Tensor, targets: Tensor) -> None:
    """Try a loss of samples before training.

    Args:
        function: The loss.
        name: Its name in errors.
        outputs: Outputs of the network for some samples, ``[samples, outputs]``.
        targets: Their targets, ``[samples]``.

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
            raise PflError(f"model.loss: {name} of outputs and targets {shapes} fails: {one_line(error)}") from error
    if problem:
        raise PflError(f"model.loss: {name} returns {problem}; allowed: one finite loss for each sample")


def _problem(losses: object, targets: Tensor) -> str:
    """What is wrong with the losses for outputs of zero; empty if nothing is."""
    if not isinstance(losses, Tensor):
        return f"a {type(losses).__name__}"
    if losses.shape != targets.shape:
        return f"the shape {tuple(losses.shape)} for {len(targets)} samples"
    if not torch.isfinite(losses).all():
        return f"{losses[~torch.isfinite(losses)][0].item()} for outputs of zero"
    return "" if losses.requires_grad else "losses without a gradient"


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether each prediction is correct, ``[clients, batch]``; always False for a regression."""
    if targets.is_floating_point():
        return torch.zeros_like(targets, dtype=torch.bool)
    if outputs.shape[-1] == 1:
        return (outputs.squeeze(-1) > 0) == (targets == 1)
    return outputs.argmax(-1) == targets
