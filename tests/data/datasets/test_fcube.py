import numpy as np

from pfl_lightning.data import FCUBE


def test_each_client_trains_on_one_octant_and_its_mirror():
    train, test = FCUBE().read()
    assert [len(train.inputs), len(test.inputs)] == [4000, 1000]
    octants = []
    for client in range(4):
        points, targets = train.inputs[train.clients == client], train.targets[train.clients == client]
        signs = np.unique(np.sign(points), axis=0)
        assert len(points) == 1000
        assert signs[0].tolist() == (-signs[1]).tolist()
        np.testing.assert_array_equal(targets, points[:, 0] < 0)
        assert np.bincount(targets).tolist() == [500, 500]
        octants += signs.tolist()
    assert len({*map(tuple, octants)}) == 8


def test_test_points_are_uniform_and_each_is_its_octants_clients():
    train, test = FCUBE().read()
    # 1,000 draws of U(-1, 1): the mean has the deviation 1 / sqrt(3,000) = 0.018
    np.testing.assert_allclose(test.inputs.mean(0), 0, atol=0.08)
    assert test.inputs.min() < -0.95
    assert test.inputs.max() > 0.95
    np.testing.assert_array_equal(test.targets, test.inputs[:, 0] < 0)
    owners = {tuple(signs): client for signs, client in zip(np.sign(train.inputs), train.clients, strict=True)}
    assert [owners[tuple(signs)] for signs in np.sign(test.inputs)] == test.clients.tolist()


def test_points_follow_the_seed_and_are_not_scaled():
    data = FCUBE()
    data.setup()
    assert {*data.client_names} == {"0", "1", "2", "3"}
    assert data.class_names == ("positive", "negative")
    first, again, other = (FCUBE(generator_seed=seed).load()[0].inputs for seed in (3, 3, 4))
    assert first.equal(again)
    assert not first.equal(other)
    assert first.abs().max() <= 1
