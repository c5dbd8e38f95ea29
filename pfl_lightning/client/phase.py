from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor

from pfl_lightning.errors import PflError
from pfl_lightning.tree import Tree, prefixed, select

Rule = Callable[[Tree, Tree], Tree]
Gradient = Callable[[Tree], Tree]
GradientTransform = Callable[[Tree, Tree, Gradient, Tree], Tree]
FeatureLoss = Callable[[Tensor, Tensor, Tensor, Tree], Tensor]
LocalOptimizer = Literal["SGD", "Adam", "AdamW"]
Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class Phase:
    """One local phase of mini-batch SGD or Adam; tensors that are not in ``trainable`` do not change.

    Each epoch visits the client's examples in a new order, including the last, smaller mini-batch. The optimizer begins
    anew in every phase: momentum and Adam's means start at zero. BatchNorm layers whose running statistics are not in
    ``trainable`` use them as they are.

    A step computes the gradient of the loss plus ``penalty``, then applies ``gradient_transform``, ``clip_norm``, and
    the optimizer with weight decay, momentum and ``lr``; ``after_step`` follows the last step on a mini-batch.
    ``penalty`` and ``after_step`` are functions that handle several clients at once: they receive the network's
    parameters in ``trainable``, ``[clients, ...]`` each, and all extra tensors that do not belong to the network (such
    as ``anchor.fc1.weight``), ``[clients, ...]`` or shared ``[...]``.

    Attributes:
        trainable: Names of the tensors (parameters, and buffers such as running statistics) that the phase changes.
        epochs: Passes over the client's examples.
        batch_size: Examples in a mini-batch.
        lr: Learning rate.
        momentum: Heavy-ball momentum of SGD, as in ``torch.optim.SGD``; Adam has none.
        weight_decay: L2 penalty on weights, or decoupled decay with AdamW; not on biases (tensors of one dimension).
        decay_biases: Apply ``weight_decay`` to biases too, as ``torch.optim`` does.
        steps: Maximum number of mini-batches per epoch; None for all. ``epochs=20, steps=1`` is 20 random batches.
        inner_steps: Steps on each mini-batch.
        clip_norm: Maximum norm of a client's gradient over all its parameters in ``trainable``; None for no clipping.
        penalty: Returns the gradient of a term added to each client's loss, by parameter name; see ``penalties``.
        after_step: Returns new values of some tensors after each mini-batch, by name; they must be in ``trainable``,
            even if they are extra tensors, and only they may be changed in place.
        gradient_transform: Replaces the gradient in a step: a function of the trained parameters, their gradient, a
            function that computes the gradient at other values of these parameters, and the extra tensors, of which it
            may change those in ``trainable`` in place. Parameters that it leaves out take no step.
        independent_batch: Whether that function uses another mini-batch of the same size, drawn independently.
        feature_loss: Loss in place of the method's: losses ``[batch]`` of one client, from outputs
            ``[batch, outputs]``, features (the inputs of the head) ``[batch, ...]``, targets ``[batch]``, and more
            tensors by name: the client's extra ones, ``[...]``; where the method has extended the network, also the
            model's own; the features of ``frozen_models``, ``[batch, ...]``, each under its prefix; ``sample_rows``,
            ``[batch, ...]``; and how much each sample is, ``amounts``, usually 1, and the factors of the losses in the
            mean of the mini-batch, ``weights``, ``[batch]`` each and 0 for padding: ``weights`` times ``amounts`` have
            the sum 1. A term of the whole mini-batch is made with them and added to each loss, times ``amounts``.
        frozen_models: Prefixes of models among the extra tensors whose features of each sample ``feature_loss`` sees;
            they are computed once, unless inputs are augmented.
        sample_rows: Names of extra tensors that hold one row for each sample, ``[clients, samples, ...]``, in the order
            of the clients' examples; ``feature_loss`` sees those of its samples.
        sample_weights: Name of an extra tensor with a factor for the loss of each sample, ``[clients, samples]``, as
            for ``sample_rows``. A step still divides by the number of samples in its mini-batch, or their amount.
        optimizer: What takes the steps, as in ``torch.optim`` with its defaults.

    Raises:
        PflError: If ``trainable`` is empty, or the phase has no step.
    """

    trainable: frozenset[str]
    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: bool = False
    steps: int | None = None
    inner_steps: int = 1
    clip_norm: float | None = None
    penalty: Rule | None = None
    after_step: Rule | None = None
    gradient_transform: GradientTransform | None = None
    independent_batch: bool = False
    feature_loss: FeatureLoss | None = None
    frozen_models: tuple[str, ...] = ()
    sample_rows: tuple[str, ...] = ()
    sample_weights: str | None = None
    optimizer: LocalOptimizer = "SGD"

    def __post_init__(self) -> None:
        for key in ("epochs", "batch_size", "steps", "inner_steps"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise PflError(f"phase.{key}: {value} is not possible; allowed: 1 or more")
        if not self.trainable:
            raise PflError("phase.trainable: nothing is not possible; allowed: names of tensors")

    def visited(self, samples: Count) -> Count:
        """Number of samples visited in an epoch by a client that has ``samples`` of them, or by several clients."""
        if self.steps is None:
            return samples
        most = self.steps * self.batch_size
        return samples.clamp(max=most) if isinstance(samples, Tensor) else min(samples, most)

    def steps_of(self, samples: Tensor) -> Tensor:
        """Number of steps of clients that have so many samples, ``[clients]``."""
        return self.epochs * self.inner_steps * -(-self.visited(samples) // self.batch_size)

    def feature_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The ``feature_loss`` of a client's samples, ``[batch]``.

        Raises:
            PflError: If it is not that of each sample.
        """
        assert self.feature_loss is not None
        losses = self.feature_loss(outputs, features, targets, extras)
        if losses.shape != (count := len(outputs),):
            shape = f"shape {(*losses.shape,)} for {count} samples"
            raise PflError(f"phase.feature_loss: {shape} is not possible; allowed: a loss of each sample, [batch]")
        return losses

    def decay_of(self, dimensions: int) -> float:
        """Weight decay of a parameter with ``dimensions`` dimensions; a single dimension means a bias."""
        return self.weight_decay if dimensions > 1 or self.decay_biases else 0.0


@dataclass(frozen=True)
class Follow:
    """Copies of the parameters take a step towards them: ``copy = copy - rate * (copy - w)``.

    The step of a client's copy of the global model in pFedMe (Dinh et al., Personalized Federated Learning with Moreau
    Envelopes, NeurIPS 2020, arXiv:2006.08848, Algorithm 1) and FedMac (arXiv:2107.05330).

    Attributes:
        rate: Size of the step; 1 sets the copies to the parameters.
        prefix: Prefix of the copies' tensors, such as ``copy`` for ``copy.fc1.weight``; they are changed in place.
    """

    rate: float
    prefix: str = "copy"

    def __call__(self, tensors: Tree, extras: Tree) -> Tree:
        """The copies after the step."""
        return {name: extras[name].lerp_(tensor, self.rate) for name, tensor in prefixed(self.prefix, tensors).items()}


@dataclass(frozen=True)
class Masked:
    """Sets entries outside a client's mask to zero, so that only those inside are trained.

    Attributes:
        prefix: Prefix of the boolean masks, such as ``mask`` for ``mask.fc1.weight``.
    """

    prefix: str = "mask"

    def __call__(self, tensors: Tree, extras: Tree) -> Tree:
        """The masked tensors."""
        masks = {name: extras[f"{self.prefix}.{name}"] for name in tensors}
        return {name: tensor * masks[name] for name, tensor in tensors.items()}  # several times as fast as where

    def onto(self, models: Tree, masks: Tree) -> Tree:
        """Masked models together with their masks, the latter under the prefix, ``[models, ...]`` each."""
        extras = prefixed(self.prefix, masks)
        return {**models, **self(select(models, masks), extras), **extras}
