"""Cohorts of random samples, for tests of what clients do."""

import numpy as np
import torch

from pfl_lightning.client import Examples, Samples
from pfl_lightning.data.clients import ClientTable

COUNTS = (11, 7, 7, 3, 1)


class Identity:
    """No transform."""

    random = False

    def __call__(self, raw, bits=None):
        return raw


def examples_of(transform=None, counts=COUNTS, shape=(1, 16, 16), classes=3) -> Examples:
    """Clients with so many random samples each, in torch's default float type."""
    total = sum(counts)
    samples = Samples(torch.randn(total, *shape), torch.randint(classes, (total,)), transform or Identity())
    parts = np.split(np.arange(total), np.cumsum(counts)[:-1])
    return ClientTable(samples, parts).examples(torch.arange(len(counts)))
