from collections.abc import Callable
from dataclasses import dataclass

from pfl_lightning.tree import Tree

Gradient = Callable[[Tree], Tree]
Direction = Callable[[Tree, Tree, Gradient], Tree]


@dataclass(frozen=True)
class Phase:
    """The declarative door: one local phase of mini-batch SGD; what it does not name stays as it is.

    Each epoch passes over the client's examples in a new order, the short last batch included. The momentum starts at
    zero in every phase. BatchNorm layers that do not move use and keep their running statistics.

    Attributes:
        moves: Names of the tensors (parameters, and the buffers beside them) that move.
        epochs: Passes over the client's examples.
        batch_size: Examples in a batch.
        lr: Learning rate.
        momentum: Heavy-ball momentum, as in ``torch.optim.SGD``.
        weight_decay: L2 penalty on weights; biases (tensors of one dimension) are spared (SRPFL, section 1).
        steps: At most so many batches in an epoch; None for all.
        direction: What a step follows instead of its batch's gradient, at all clients at once: a pure function of the
            tensors that move, ``[clients, ...]``, the gradient there, and the gradient as a function of such tensors.
    """

    moves: frozenset[str]
    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    steps: int | None = None
    direction: Direction | None = None
