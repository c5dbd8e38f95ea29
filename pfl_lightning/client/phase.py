from dataclasses import dataclass


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
    """

    moves: frozenset[str]
    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
