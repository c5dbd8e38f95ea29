import numpy as np
import pytest

from pfl_lightning.data import Labels, Population


@pytest.fixture(scope="session")
def share_out():
    """Splits samples, given by their labels, among clients who are the faster the lower their ids."""

    def run(partition, labels, clients, seed=0, classes=None):
        splits = [Labels(np.asarray(each)) for each in labels]
        classes = classes or int(max(split.classes.max() for split in splits)) + 1
        population = Population(clients, np.arange(clients) / 1.0)
        return partition(splits, classes, population, np.random.default_rng(seed))

    return run


@pytest.fixture(scope="session")
def class_counts():
    """Samples of each class at each client, ``[classes, clients]``."""

    def count(parts, labels, classes):
        return np.stack([np.bincount(labels[part], minlength=classes) for part in parts], axis=1)

    return count
