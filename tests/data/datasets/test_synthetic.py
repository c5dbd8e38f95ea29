import numpy as np
import pytest
import torch

from pfl_lightning.data.datasets.synthetic import Synthetic


@pytest.fixture(scope="module")
def fedmac():
    """The 100 users of FedMac."""
    every, test = Synthetic(num_clients=100).load()
    assert test is None
    return every


def test_sizes_and_labels_are_those_of_pfedme(fedmac):
    # what the generator of pFedMe's code draws with RandomState(0), 100 users and alpha = beta = 0.5
    sizes = fedmac.users.bincount()
    assert sizes[:12].tolist() == [9545, 855, 2180, 24380, 11685, 285, 2075, 450, 470, 870, 610, 5250]
    assert (sizes.sum(), sizes.min(), sizes.max()) == (205_795, 250, 25_810)
    pairs = torch.stack([fedmac.users, fedmac.targets]).unique(dim=1)
    assert pairs.shape[1] / 100 == 3.0
    assert (fedmac.inputs.shape, fedmac.inputs.dtype) == ((205_795, *Synthetic.input_shape), torch.float32)
    assert fedmac.targets.dtype == fedmac.users.dtype == torch.int64
    assert fedmac.targets.unique().tolist() == list(range(Synthetic.num_classes))


def test_draws_are_those_of_the_published_recipe():
    # FedProx and pFedMe draw all inputs of a user by one call of multivariate_normal
    data = Synthetic(alpha=0.2, beta=2.0, generator_seed=3, num_clients=4)
    random = np.random.RandomState(3)
    sizes = [(int(draw) + 50) * 5 for draw in random.lognormal(4, 2, 4)]
    model_means, input_means = random.normal(0, 0.2, 4), random.normal(0, 2.0, 4)
    centres = [random.normal(mean, 1, 60) for mean in input_means]
    covariance = np.diag([j**-1.2 for j in range(1, 61)])
    every, _ = data.load()
    for user, size in enumerate(sizes):
        weights, bias = random.normal(model_means[user], 1, (60, 10)), random.normal(model_means[user], 1, 10)
        inputs = random.multivariate_normal(centres[user], covariance, size)
        own = every.users == user
        np.testing.assert_allclose(every.inputs[own], inputs, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(every.targets[own], (inputs @ weights + bias).argmax(1))


def test_every_client_is_a_user():
    data = Synthetic(num_clients=6)
    data.setup()
    held = sum(table.counts for table in data.tables.values())
    assert sorted(held.tolist()) == sorted(data.load()[0].users.bincount().tolist())
