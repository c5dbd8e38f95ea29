"""Cohorts of random samples, for tests of what clients do."""

import numpy as np
import torch
from plain_methods import samples_of  # noqa: F401  # for the tests of cohorts

from pfl_lightning.client import Examples, Samples
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.tree import Params

COUNTS = (11, 7, 7, 3, 1)
CLIENTS = len(COUNTS)


class Identity:
    """No transform."""

    random = False

    def __call__(self, raw, bits=None):
        return raw


def examples_of(transform=None, counts=COUNTS, shape=(1, 16, 16), classes=3) -> Examples:
    """Clients with so many random samples each, in torch's default float type."""
    total = sum(counts)
    samples = Samples(torch.randn(total, *shape), torch.randint(classes, (total,)), transform or Identity())
    return deal_out(samples, counts)


def deal_out(samples: Samples, counts) -> Examples:
    """Clients with so many of the samples each, in their order."""
    parts = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    return ClientTable(samples, parts).examples(torch.arange(len(counts)))


def params_of(network, own=(), clients=CLIENTS) -> Params:
    """The tensors of a network, some of which are each client's own and differ a little."""
    tensors = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    params = Params(tensors, {}).owned(own, clients)
    for tensor in params.own.values():
        tensor += 0.1 * torch.randn_like(tensor)
    return params
