"""Plain loops: what one client does, by torch's own functions and optimizer, in the engine's order of samples."""

from fakes.torch_sgd import by_phase
from pfl_lightning.client import Phase
from pfl_lightning.seeding import permutations


def batches(own, key, epochs=1, batch_size=4):
    """The mini-batches of one client in some epochs, as lists of inputs and targets, one list an epoch."""
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    orders = (permutations((*key, "order", epoch), own.ids, own.counts, len(targets))[0] for epoch in range(epochs))
    return [[(inputs[batch], targets[batch]) for batch in order.split(batch_size)] for order in orders]


def pull(strength, anchor):
    """A proximal term around some tensors."""
    return lambda moving: strength / 2 * sum((moving[name] - anchor[name]).square().sum() for name in moving)


def trained(
    network, tensors, moves, own, key, lr, epochs=1, momentum=0.0, decay=0.0, batch_size=4, penalty=None, factors=None
):
    """``by_phase`` for the usual numbers of local training; ``penalty`` is a function of the tensors that move."""
    phase = Phase(frozenset(moves), epochs, batch_size, lr, momentum, decay)
    return by_phase(network, tensors, phase, own, key, penalty and (lambda moving, _: penalty(moving)), factors)


def map_clients(examples, work):
    """Models and losses of all clients of a cohort, given what one client does with its examples."""
    found = [work(examples.rows(row, row + 1)) for row in range(len(examples))]
    return [model for model, _ in found], [loss for _, loss in found]
