"""Plain loops: what one client does, by torch's own functions and optimizer, in the engine's order of samples."""

from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

from pfl_lightning.seeding import permutations


def batches(own, key, epochs=1, batch_size=4):
    """The mini-batches of one client in some epochs, as lists of inputs and targets, one list an epoch."""
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    orders = (permutations((*key, "order", epoch), own.ids, own.counts, len(targets))[0] for epoch in range(epochs))
    return [[(inputs[batch], targets[batch]) for batch in order.split(batch_size)] for order in orders]


def pull(strength, anchor):
    """A proximal term around some tensors."""
    return lambda moving: strength / 2 * sum((moving[name] - anchor[name]).square().sum() for name in moving)


def trained(network, tensors, moves, own, key, lr, epochs=1, momentum=0.0, decay=0.0, batch_size=4, penalty=None):
    """Tensors of one client after some epochs of SGD on those that move, and its mean loss in the last epoch.

    Args:
        network: The network.
        tensors: All tensors of the client before, ``[...]``; not changed.
        moves: Names of the tensors to train.
        own: Examples of this client alone.
        key: Key of the orders.
        lr: Learning rate.
        epochs: Passes over the examples.
        momentum: Momentum.
        decay: Weight decay of tensors with more than one dimension.
        batch_size: Examples of a mini-batch.
        penalty: What is added to the loss, a function of the tensors that move; it does not count in the mean loss.
    """
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    moving = {name: tensors[name].requires_grad_() for name in sorted(moves)}
    groups = [{"params": [tensor], "weight_decay": decay if tensor.ndim > 1 else 0.0} for tensor in moving.values()]
    optimizer = SGD(groups, lr, momentum)
    for epoch in batches(own, key, epochs, batch_size):
        total = 0.0
        for inputs, targets in epoch:
            optimizer.zero_grad()
            loss = F.cross_entropy(functional_call(network, tensors, inputs), targets)
            (loss + penalty(moving) if penalty else loss).backward()
            optimizer.step()
            total += loss.item() * len(targets)
    return {name: tensor.detach() for name, tensor in tensors.items()}, total / int(own.counts[0])


def map_clients(examples, work):
    """Models and losses of all clients of a cohort, given what one client does with its examples."""
    found = [work(examples.rows(row, row + 1)) for row in range(len(examples))]
    return [model for model, _ in found], [loss for _, loss in found]
