from collections.abc import Callable
from dataclasses import dataclass

from pfl_lightning.errors import PflError
from pfl_lightning.tree import Tree

Rule = Callable[[Tree, Tree], Tree]
Gradient = Callable[[Tree], Tree]
Direction = Callable[[Tree, Tree, Gradient], Tree]


@dataclass(frozen=True)
class Phase:
    """One local phase of mini-batch SGD; what it does not name stays as it is.

    Each epoch passes over the client's examples in a new order, the short last batch included. The momentum starts at
    zero in every phase. BatchNorm layers that do not move use and keep their running statistics.

    A step is ``gradient of the loss + penalty``, then ``direction``, ``clip_norm``, weight decay, momentum, the move
    along ``lr``, and ``after_step``. ``penalty`` and ``after_step`` are pure functions for several clients at once:
    they receive the network's parameters that move, ``[clients, ...]`` each, and all tensors that lie beside the
    network (such as ``anchor.fc1.weight``), each client's own ``[clients, ...]`` or shared ``[...]``.

    Attributes:
        moves: Names of the tensors (parameters, and the buffers beside them) that move.
        epochs: Passes over the client's examples.
        batch_size: Examples in a batch.
        lr: Learning rate.
        momentum: Heavy-ball momentum, as in ``torch.optim.SGD``.
        weight_decay: L2 penalty on weights; biases (tensors of one dimension) are spared.
        decay_biases: Whether ``weight_decay`` is for biases too, as in ``torch.optim.SGD``.
        steps: At most so many batches in an epoch; None for all. ``epochs=20, steps=1`` is 20 random batches.
        clip_norm: Largest norm of a client's gradient, over all that moves; None for no limit.
        penalty: Gradient of what is added to each client's loss, by name of the parameter; see ``penalties``.
        after_step: What some tensors become behind each step, by name; all of them must be in ``moves``, also those
            beside the network.
        direction: What a step follows instead of the gradient: a pure function of the parameters that move, the
            gradient there, and the gradient as a function of such parameters.

    Raises:
        PflError: If nothing moves.
    """

    moves: frozenset[str]
    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: bool = False
    steps: int | None = None
    clip_norm: float | None = None
    penalty: Rule | None = None
    after_step: Rule | None = None
    direction: Direction | None = None

    def __post_init__(self) -> None:
        if not self.moves:
            raise PflError("phase.moves: nothing is not possible; allowed: names of tensors")

    def visited(self, samples: int) -> int:
        """How many of a client's samples an epoch visits."""
        return samples if self.steps is None else min(samples, self.steps * self.batch_size)

    def decay_of(self, dimensions: int) -> float:
        """Weight decay of a parameter with so many dimensions; one with a single dimension is a bias."""
        return self.weight_decay if dimensions > 1 or self.decay_biases else 0.0
