"""Plain loops: what one client does, by torch's own functions and optimizer, in the engine's order of samples."""

from copy import deepcopy
from itertools import chain

import torch
from plain_methods import samples_of
from torch.func import functional_call, grad
from torch.nn import functional as F

from fakes.torch_sgd import by_phase
from pfl_lightning.client import Phase
from pfl_lightning.seeding import permutations


def participants(data, index):
    """The clients of a round in its order: each one's id, and its examples alone."""
    examples = data.make_round(index).examples
    return [(client, examples.rows(row, row + 1)) for row, client in enumerate(examples.ids.tolist())]


def plain_rounds(loop, method, data, rounds, **options):
    """A loop of ``plain_methods`` after some rounds from the method's network, in the engine's order of samples."""

    class InOrder(loop):
        def order(self, client, part, epoch):
            count = self.count(client)
            repetition = (0,) if self.head else ()
            key = (1, "train", index, part, *repetition, "order", epoch)
            return permutations(key, torch.tensor([client]), torch.tensor([count]), count)[0]

    data.setup()
    table = data.tables["train"]
    clients = [client for client, count in enumerate(table.counts) if count]
    samples = {client: samples_of(table.examples(torch.tensor([client]))) for client in clients}
    options = {"lr": 0.1, "lr_decay": 1.0, "batch_size": 4, "epochs": 1, **options}
    plain = InOrder(deepcopy(method.network), samples, options)
    for index in range(rounds):
        plain.options = {**options, "lr": options["lr"] * options["lr_decay"] ** index}
        plain.round(data.make_round(index).examples.host_ids.tolist())
    return plain


def places(own, key, epochs=1, batch_size=4):
    """Which samples of one client are in its mini-batches in some epochs, one list an epoch."""
    orders = (permutations((*key, "order", epoch), own.ids, own.counts, own.longest)[0] for epoch in range(epochs))
    return [order.split(batch_size) for order in orders]


def batches(own, key, epochs=1, batch_size=4):
    """The mini-batches of one client in some epochs, as lists of inputs and targets, one list an epoch."""
    inputs, targets = samples_of(own)
    return [[(inputs[at], targets[at]) for at in epoch] for epoch in places(own, key, epochs, batch_size)]


def cross_entropy(network, tensors, inputs, targets):
    """The loss of a network with these tensors."""
    return F.cross_entropy(functional_call(network, tensors, inputs), targets)


def features(model, inputs):
    """Inputs of the head of ``fakes.methods.built``'s network."""
    hidden = inputs.flatten(1)
    for layer in ("fc1", "fc2"):
        hidden = F.relu(F.linear(hidden, model[f"{layer}.weight"], model[f"{layer}.bias"]))
    return hidden


def near_prototypes(model, inputs, targets, prototypes):
    """Mean squared distance of features to the prototypes of their classes; 0 for a class without one."""
    near = [
        (z - prototypes[y]).square().mean() if y in prototypes else torch.zeros(())
        for z, y in zip(features(model, inputs), targets.tolist(), strict=True)
    ]
    return torch.stack(near).mean()


def descended(model, loss, own, key, lr=0.1, epochs=1):
    """Tensors after a step along the gradient for each mini-batch; ``loss`` is of tensors, inputs and targets."""
    inputs, targets = samples_of(own)
    return descended_at(model, lambda tensors, at: loss(tensors, inputs[at], targets[at]), own, key, lr, epochs)


def descended_at(model, loss, own, key, lr=0.1, epochs=1):
    """The same for a loss of tensors and of which samples are in the mini-batch."""
    for at in chain(*places(own, key, epochs)):
        slopes = grad(loss)(model, at)
        model = {name: tensor - lr * slopes[name] for name, tensor in model.items()}
    return model


def pull(strength, anchor):
    """A proximal term around some tensors."""
    return lambda moving: strength / 2 * sum((moving[name] - anchor[name]).square().sum() for name in moving)


def trained(network, tensors, own, key, moves=None, lr=0.1, epochs=1, momentum=0.0, decay=0.0, penalty=None, **rule):
    """``by_phase`` for the usual numbers of local training: tensors, of which some may stay, and the mean loss.

    ``penalty`` is a function of the tensors that move.
    """
    phase = Phase(frozenset(moves or tensors), epochs, 4, lr, momentum, decay)
    return by_phase(network, tensors, phase, own, key, penalty and (lambda moving, _: penalty(moving)), **rule)


def map_clients(data, work, index=0):
    """Models and losses of all clients of a round, given what one client does with its examples."""
    return zip(*(work(own) for _, own in participants(data, index)), strict=True)
