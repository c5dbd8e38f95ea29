"""A phase of one client by an optimizer of torch, in the engine's order of samples."""

from functools import partial

import torch
from plain_loop import train
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from pfl_lightning.seeding import permutations, random_bits, samples

KEY = (1, "train", 0)


def by_torch(network, examples, params, phase, client, penalty=None, factors=None):
    """The trained tensors of one of several clients and its mean loss; see ``by_phase``."""
    own = examples.rows(client, client + 1)
    tensors, loss = by_phase(network, params.client(client), phase, own, KEY, penalty, factors)
    return {name: tensors[name] for name in phase.trainable}, loss


def by_phase(network, tensors, phase, own, key, penalty=None, factors=None):
    """Tensors of one client after a phase by an optimizer of torch, and its mean loss in the last epoch.

    Args:
        network: The network.
        tensors: All tensors of the client before, ``[...]``; not changed.
        phase: The phase.
        own: Examples of this client alone.
        key: Key of the orders.
        penalty: What is added to the loss, a function of the tensors that move and of all; it does not count in the
            mean loss.
        factors: Of the loss of each sample, ``[samples]``; 1 by default.
    """
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    moving = {name: tensors[name].requires_grad_() for name in sorted(phase.trainable)}
    groups = [
        {"params": [tensor], "weight_decay": phase.weight_decay * (tensor.ndim > 1 or phase.decay_biases)}
        for tensor in moving.values()
    ]
    kind = {"SGD": partial(SGD, momentum=phase.momentum), "Adam": Adam, "AdamW": AdamW}[phase.optimizer]
    optimizer = kind(groups, lr=phase.lr)

    def clip():
        if phase.clip_norm:
            nn.utils.clip_grad_norm_(moving.values(), phase.clip_norm)

    count = int(own.counts[0])
    factors = torch.ones(count) if factors is None else factors
    for epoch in range(phase.epochs):
        order, visited = (*key, "order", epoch), min(phase.visited(10**6), count)
        few = samples([order], own.ids, own.counts, visited)[0] if phase.steps else None
        places = (permutations(order, own.ids, own.counts, visited) if few is None else few)[0]
        bits = random_bits((*key, "augment", epoch), own.ids, own.longest)[:, :count]
        inputs, targets = own.gather(own.positions, bits)[0], own.targets(own.positions)[0]
        losses = []

        def loss_of(x, y, weights, losses=losses):
            state = {name: tensors[name] for name in network.state_dict()}
            loss = (F.cross_entropy(functional_call(network, state, x), y, reduction="none") * weights).mean()
            losses += [loss.item()] * len(x)
            return loss + (penalty(moving, tensors) if penalty else 0)

        batches = places.split(phase.batch_size)[: phase.steps]
        train(optimizer, ((inputs[batch], targets[batch], factors[batch]) for batch in batches), loss_of, clip)
    return {name: tensor.detach() for name, tensor in tensors.items()}, sum(losses) / len(losses)
