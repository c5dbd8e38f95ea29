import pytest
import torch
from scipy.spatial.distance import squareform
from scipy.stats import pearsonr

from pfl_lightning.metrics import pair_correlation, pairs


def similarity(seed, clients=6):
    points = torch.randn(clients, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return points @ points.T


def test_every_pair_of_clients_comes_once():
    matrix = similarity(0)
    expected = squareform(matrix.numpy() * (1 - torch.eye(6).numpy()), checks=False)
    assert pairs(matrix).tolist() == expected.tolist()


def test_the_correlation_is_that_of_scipy():
    first, second = similarity(1), similarity(2)
    expected = pearsonr(pairs(first), pairs(second)).statistic
    assert pair_correlation(first, second).item() == pytest.approx(expected)
    assert 0.01 < abs(expected) < 0.99


def test_the_correlation_does_not_depend_on_scale_nor_on_the_diagonal():
    first, second = similarity(1).float(), similarity(2).float()
    moved = ((second + 1) / 2).fill_diagonal_(100.0)
    torch.testing.assert_close(pair_correlation(first, moved), pair_correlation(first, second), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_there_is_no_correlation_with_what_is_the_same_for_all_pairs(clients):
    rounding = 1e-12 * similarity(3, clients)
    assert pair_correlation(similarity(1, clients), torch.ones(clients, clients) + rounding).isnan()
    assert pair_correlation(torch.ones(clients, clients), similarity(1, clients)).isnan()
