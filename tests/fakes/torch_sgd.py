"""A phase of one client by torch.optim.SGD, in the engine's order of samples."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.seeding import permutations, random_bits, samples

KEY = (1, "train", 0)


def by_torch(network, examples, params, phase, client, penalty=None):
    """The trained tensors and the mean loss of the last epoch; ``penalty`` is what is added to the loss."""
    tensors = {name: tensor.clone() for name, tensor in params.client(client).items()}
    moving = {name: tensors[name].requires_grad_() for name in phase.trainable}
    spared = [name for name, tensor in moving.items() if tensor.ndim == 1 and not phase.decay_biases]
    decays = {name: 0.0 if name in spared else phase.weight_decay for name in moving}
    groups = [{"params": [moving[name]], "weight_decay": decay} for name, decay in decays.items()]
    optimizer = torch.optim.SGD(groups, phase.lr, phase.momentum)
    own, count = examples.rows(client, client + 1), int(examples.counts[client])
    losses = []
    for epoch in range(phase.epochs):
        key, visited = (*KEY, "order", epoch), min(phase.visited(10**6), count)
        few = samples([key], own.ids, own.counts, visited)[0] if phase.steps else None
        order = (permutations(key, own.ids, own.counts, visited) if few is None else few)[0]
        bits = random_bits((*KEY, "augment", epoch), own.ids, examples.longest)[:, :count]
        inputs, targets = own.gather(own.positions, bits)[0], own.targets(own.positions)[0]
        losses = []
        for batch in order.split(phase.batch_size)[: phase.steps]:
            optimizer.zero_grad()
            own_tensors = {name: tensors[name] for name in network.state_dict()}
            loss = F.cross_entropy(functional_call(network, own_tensors, inputs[batch]), targets[batch])
            losses += [loss.item()] * len(batch)
            (loss + (penalty(moving, tensors) if penalty else 0)).backward()
            if phase.clip_norm:
                nn.utils.clip_grad_norm_(moving.values(), phase.clip_norm)
            optimizer.step()
    return {name: tensor.detach() for name, tensor in moving.items()}, sum(losses) / len(losses)
