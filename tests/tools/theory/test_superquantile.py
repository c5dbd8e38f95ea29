import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from theory.superquantile import (
    gaussian_losses,
    narrowed,
    superquantile_loss,
    superquantile_minimizer,
    worst_mixture,
)

OBTUSE = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
ACUTE = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
NEAR = {"rtol": 0, "atol": 1e-6}
CONFORMITIES = st.floats(0.05, 1.0)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def area(triangle):
    return float(torch.linalg.det(triangle[1:] - triangle[0]).abs()) / 2


TRIANGLES = (
    st.tuples(*[st.floats(-3, 3)] * 6)
    .map(lambda coordinates: numbers(*coordinates).view(3, 2))
    .filter(lambda triangle: area(triangle) > 0.1)
)


def circumcentre(triangle):
    """The point that is equally far from the corners."""
    sides = triangle[1:] - triangle[0]
    return triangle[0] + torch.linalg.solve(2 * sides, sides.square().sum(-1))


def loss(point, triangle, conformity):
    return float(superquantile_loss(gaussian_losses(point, triangle), conformity))


@pytest.mark.parametrize(
    ("conformity", "weights"),
    [(1.0, (1 / 3, 1 / 3, 1 / 3)), (2 / 3, (1 / 2, 1 / 2, 0)), (1 / 2, (2 / 3, 1 / 3, 0)), (1 / 3, (1, 0, 0))],
)
def test_the_worst_mixture_fills_the_weights_from_the_largest_loss_down(conformity, weights):
    torch.testing.assert_close(worst_mixture(3, conformity), numbers(*weights))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), CONFORMITIES)
def test_the_superquantile_is_the_minimum_of_rockafellar_and_uryasev(losses, conformity):
    # piecewise linear in eta, so the minimum is at one of the losses
    values = np.array(losses)
    at = [eta + np.maximum(values - eta, 0).mean() / conformity for eta in values]
    assert float(superquantile_loss(numbers(*losses), conformity)) == pytest.approx(min(at), abs=1e-9)


def test_losses_are_those_of_samples():
    random = torch.Generator().manual_seed(0)
    samples = torch.randn(200_000, 2, generator=random, dtype=torch.float64) + OBTUSE[1]
    point = numbers(1, 1)
    sampled = (samples - point).square().sum(-1).mean() / 2
    assert float(gaussian_losses(point, OBTUSE)[1]) == pytest.approx(float(sampled), rel=0.01)  # (10 + 2) / 2


def test_the_numbers_of_the_obtuse_triangle():
    # at the centroid (5/3, 1/3) the squared distances are 26/9, 50/9 and 8/9
    fedavg = superquantile_minimizer(OBTUSE, 1.0)
    torch.testing.assert_close(fedavg, numbers(5 / 3, 1 / 3), **NEAR)
    torch.testing.assert_close(gaussian_losses(fedavg, OBTUSE), numbers(22 / 9, 34 / 9, 13 / 9), **NEAR)
    assert [loss(fedavg, OBTUSE, theta) for theta in (1, 2 / 3, 1 / 3)] == pytest.approx([23 / 9, 28 / 9, 34 / 9])
    for conformity in (2 / 3, 1 / 2, 1 / 3):
        torch.testing.assert_close(superquantile_minimizer(OBTUSE, conformity), numbers(2, 0), **NEAR)
    torch.testing.assert_close(gaussian_losses(numbers(2, 0), OBTUSE), numbers(3, 3, 2))
    # pi = (5/12, 5/12, 1/6) mixes the means to (11/6, 1/6), where the losses are 61/36, 85/36 and 25/36 above 1
    best = superquantile_minimizer(OBTUSE, 0.8)
    torch.testing.assert_close(best, numbers(11 / 6, 1 / 6), **NEAR)
    assert loss(best, OBTUSE, 0.8) == pytest.approx(2.80555555)


def test_of_an_acute_triangle_it_is_the_circumcentre():
    torch.testing.assert_close(superquantile_minimizer(ACUTE, 2 / 3), numbers(2, 1), **NEAR)
    assert loss(numbers(2, 1), ACUTE, 2 / 3) == pytest.approx(3.5)  # (5 + 2) / 2, for all three devices
    assert loss(numbers(2.5, 1.5), ACUTE, 2 / 3) == pytest.approx(4.25)  # midpoint of the longest side


@given(TRIANGLES)
def test_at_two_thirds_it_is_the_circumcentre_or_the_midpoint_of_the_longest_side(triangle):
    sides = [(triangle[i] - triangle[j]).square().sum() for i, j in ((0, 1), (1, 2), (2, 0))]
    longest = int(torch.stack(sides).argmax())
    acute = sum(sides) > 2 * sides[longest]  # by the law of cosines
    midpoint = (triangle[longest] + triangle[(longest + 1) % 3]) / 2
    expected = circumcentre(triangle) if acute else midpoint
    torch.testing.assert_close(superquantile_minimizer(triangle, 2 / 3), expected, **NEAR)


@pytest.mark.slow
@given(TRIANGLES, CONFORMITIES)
def test_no_other_point_has_a_smaller_superquantile(triangle, conformity):
    found = superquantile_minimizer(triangle, conformity)

    def objective(point):
        return loss(torch.from_numpy(point), triangle, conformity)

    searched = minimize(objective, triangle.mean(0).numpy(), method="Nelder-Mead", options={"xatol": 1e-6})
    assert loss(found, triangle, conformity) <= searched.fun + 1e-6  # both are at a kink, to so many digits of a point


@pytest.mark.parametrize("conformity", [2 / 3, 0.8, 1.0])
def test_narrowed_mixtures_have_the_conformity_and_the_corners_become_corners(conformity):
    corners = narrowed(torch.eye(3, dtype=torch.float64), conformity)
    torch.testing.assert_close(corners.sum(-1), torch.ones(3, dtype=torch.float64))
    assert float(corners.max()) == pytest.approx(1 / (3 * conformity))
    losses = numbers(0.3, 2.0, 1.1)
    torch.testing.assert_close((corners @ losses).max(), superquantile_loss(losses, conformity))
