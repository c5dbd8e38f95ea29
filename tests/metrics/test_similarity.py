from math import cos, sin

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from scipy.spatial.distance import squareform
from scipy.stats import pearsonr
from torch import Tensor

from pfl_lightning.metrics import orthonormal, pair_correlation, pairs, principal_angle_distance


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


# Spaces


def columns(*vectors) -> Tensor:
    return torch.tensor(vectors, dtype=torch.float64).T


E1, E2, E3, E4 = torch.eye(4, dtype=torch.float64)


def random_basis(seed: int, dimension: int = 7, rank: int = 3) -> Tensor:
    return torch.randn(dimension, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distance_is_0_of_a_space_to_itself_and_1_between_orthogonal_spaces():
    one = torch.stack([E1, E2], 1)
    assert float(principal_angle_distance(one, one @ columns([2, 1], [1, 3]))) < 1e-15
    assert float(principal_angle_distance(one, torch.stack([E3, E4], 1))) == 1
    assert float(principal_angle_distance(one, torch.stack([E3, E1], 1))) == 1, "one orthogonal direction is enough"


@pytest.mark.parametrize("angle", [1e-14, 1e-9, 1e-4])
def test_tiny_distances_keep_their_digits(angle):
    one, other = columns([1, 0]), columns([cos(angle), sin(angle)])
    assert float(principal_angle_distance(one, other)) == pytest.approx(angle, rel=1e-2)
    assert float(principal_angle_distance(one.float(), other.float())) == pytest.approx(angle, rel=1e-2)


@given(seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
def test_distance_agrees_with_scipy_and_is_symmetric(seeds):
    one, other = map(random_basis, seeds)
    distance = float(principal_angle_distance(one, other))
    assert distance == pytest.approx(sin(subspace_angles(one.numpy(), other.numpy())[0]), abs=1e-12)
    assert distance == pytest.approx(float(principal_angle_distance(other, one)), abs=1e-12)


@given(seed=st.integers(0, 10**6))
def test_orthonormal_is_unique_and_spans_the_same_space(seed):
    basis = random_basis(seed)
    columns_of_q = orthonormal(basis)
    torch.testing.assert_close(columns_of_q.T @ columns_of_q, torch.eye(3, dtype=torch.float64))
    r = columns_of_q.T @ basis
    torch.testing.assert_close(columns_of_q @ r, basis)
    torch.testing.assert_close(r.tril(-1), torch.zeros_like(r), atol=1e-12, rtol=0)
    assert (r.diagonal() > 0).all()
