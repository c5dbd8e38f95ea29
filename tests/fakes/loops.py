"""Plain loops: what one client does, by torch's own functions and optimizer, in the engine's order of samples."""

from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

from pfl_lightning.seeding import permutations


def trained(network, tensors, moves, own, key, lr, epochs=1, momentum=0.0, decay=0.0, batch_size=4):
    """Tensors of one client after some epochs of SGD on those that move, and its mean loss in the last epoch.

    Args:
        network: The network.
        tensors: All tensors of the client before, ``[...]``; not changed.
        trainable: Names of the tensors to train.
        own: Examples of this client alone.
        key: Key of the orders.
        lr: Learning rate.
        epochs: Passes over the examples.
        momentum: Momentum.
        decay: Weight decay of tensors with more than one dimension.
        batch_size: Examples of a mini-batch.
    """
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    moving = [tensors[name].requires_grad_() for name in sorted(moves)]
    groups = [{"params": [tensor], "weight_decay": decay if tensor.ndim > 1 else 0.0} for tensor in moving]
    optimizer = SGD(groups, lr, momentum)
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    for epoch in range(epochs):
        total = 0.0
        order = permutations((*key, "order", epoch), own.ids, own.counts, len(targets))[0]
        for batch in order.split(batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(functional_call(network, tensors, inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
    return {name: tensor.detach() for name, tensor in tensors.items()}, total / len(targets)


def map_clients(examples, work):
    """Models and losses of all clients of a cohort, given what one client does with its examples."""
    found = [work(examples.rows(row, row + 1)) for row in range(len(examples))]
    return [model for model, _ in found], [loss for _, loss in found]
