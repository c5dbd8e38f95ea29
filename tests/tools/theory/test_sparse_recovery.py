import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import linprog, minimize, minimize_scalar
from theory.sparse_recovery import (
    Program,
    draw_problems,
    recovered,
    rows_needed,
    sparse_solution,
    support_subgradient,
)

PLAIN, FEDMAC, PFEDME = Program(), Program(correlation=0.8), Program(correlation=0.8, ridge=0.8)


def draw(number, rows, dimension=20, nonzeros=4, error=0.25, noise=0.0, seed=0):
    return draw_problems(number, rows, dimension, nonzeros, error, noise, torch.Generator().manual_seed(seed))


def value(theta, prior, program):
    """The objective; the tensors may also be arrays."""
    weight, correlation, ridge = program
    return weight * abs(theta).sum(-1) - correlation * (theta * prior).sum(-1) + ridge / 2 * (theta**2).sum(-1)


def by_linear_programming(problems, program):
    """scipy's results without noise and ridge: theta is the difference of two vectors that are not negative."""
    results = []
    for matrix, answers, _, prior in zip(*(tensor.numpy() for tensor in problems), strict=True):
        gain = program.correlation * prior
        costs = np.concatenate([program.weight - gain, program.weight + gain])
        results.append(linprog(costs, A_eq=np.hstack([matrix, -matrix]), b_eq=answers))
    return results


def by_sequential_programming(matrix, answers, prior, program, radius):
    """scipy's solution with noise, by the same two vectors."""
    size = len(prior)
    found = minimize(
        lambda both: program.weight * both.sum() + value(both[:size] - both[size:], prior, program._replace(weight=0)),
        np.full(2 * size, 0.1),
        bounds=[(0, None)] * (2 * size),
        constraints={
            "type": "ineq",
            "fun": lambda both: radius**2 - ((answers - matrix @ (both[:size] - both[size:])) ** 2).sum(),
        },
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    assert found.success
    return found.x[:size] - found.x[size:]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "rows"), [(PLAIN, 9), (FEDMAC, 5)])
def test_solutions_without_noise_are_those_of_linear_programming(program, rows):
    problems = draw(10, rows)
    found = sparse_solution(problems, program, radius=0.0, iterations=4000)
    expected = np.stack([result.x for result in by_linear_programming(problems, program)]).reshape(10, 2, 20)
    np.testing.assert_allclose(found, expected[:, 0] - expected[:, 1], atol=1e-3)
    assert len(set(recovered(found, problems.signal).tolist())) == 2, "some succeed, some do not"


@pytest.mark.slow
@pytest.mark.parametrize("program", [PLAIN, FEDMAC, PFEDME])
def test_solutions_with_noise_are_those_of_sequential_programming(program):
    problems = draw(5, rows=5, dimension=8, nonzeros=2, noise=0.1)
    solutions = sparse_solution(problems, program, radius=0.1, iterations=4000)
    for found, x, y, _, w in zip(solutions.numpy(), *(tensor.numpy() for tensor in problems), strict=True):
        expected = by_sequential_programming(x, y, w, program, radius=0.1)
        assert np.linalg.norm(y - x @ found) <= 0.1 + 1e-6
        assert value(found, w, program) == pytest.approx(value(expected, w, program), abs=1e-5)


def test_a_ridge_of_the_size_of_the_correlation_is_pfedmes_distance_up_to_a_constant():
    _, _, signal, prior = draw(10, rows=5)
    theta = signal + prior.flip(0)
    distance = 0.8 / 2 * (theta - prior).square().sum(-1)
    constant = 0.8 / 2 * prior.square().sum(-1)
    torch.testing.assert_close(value(theta, prior, PFEDME), theta.abs().sum(-1) + distance - constant)


def test_a_correlation_above_the_bound_may_leave_the_program_unbounded():
    problems = draw(20, rows=9)
    largest = float(problems.prior.abs().max())
    too_much = Program(correlation=1.5)
    assert 3 in [result.status for result in by_linear_programming(problems, too_much)], "scipy's word for unbounded"
    just_enough = Program(correlation=1 / largest - 1e-12)
    assert {result.status for result in by_linear_programming(problems, just_enough)} == {0}


@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(0.01, 1.99), st.booleans()), min_size=1, max_size=8),
    st.floats(0.1, 3),
    st.floats(0.1, 3),
)
def test_a_prior_with_the_right_signs_makes_the_subgradient_on_the_support_smaller(entries, weight, correlation):
    # 0 < correlation |w_i| < 2 weight
    signs = torch.tensor([1.0 if positive else -1.0 for *_, positive in entries], dtype=torch.float64)
    signal = signs * torch.tensor([size for size, *_ in entries], dtype=torch.float64)
    prior = signs * torch.tensor([share for _, share, _ in entries], dtype=torch.float64) * weight / correlation
    program = Program(weight, correlation)
    plain = weight**2 * len(entries)
    assert float(support_subgradient(signal, prior, Program(weight))) == pytest.approx(plain)
    assert float(support_subgradient(signal, prior, program)) < plain
    assert float(support_subgradient(signal, -prior, program)) > plain
    assert float(support_subgradient(signal, signal, Program(weight, correlation, correlation))) == pytest.approx(plain)


@pytest.mark.parametrize("program", [PLAIN, FEDMAC, PFEDME])
def test_the_subgradient_on_the_support_is_the_gradient_there(program):
    _, _, signal, prior = draw(10, rows=5)
    theta = signal.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(theta, prior, program).sum(), theta)
    expected = (gradient * (signal != 0)).square().sum(-1)
    torch.testing.assert_close(support_subgradient(signal, prior, program), expected)


@pytest.mark.parametrize("nonzeros", [1, 10, 60])
def test_plain_l1_needs_as_many_rows_as_published(nonzeros):
    # Amelunxen et al., descent cones of the l1 norm: the smallest
    # rho (1 + t^2) + (1 - rho) sqrt(2 / pi) int_t^inf (u - t)^2 exp(-u^2 / 2) du, times the dimension
    rho = nonzeros / 100

    def share(t):
        tail = quad(lambda u: (u - t) ** 2 * np.exp(-(u**2) / 2), t, np.inf)[0]
        return rho * (1 + t**2) + (1 - rho) * np.sqrt(2 / np.pi) * tail

    expected = 100 * minimize_scalar(share, bounds=(0, 10), method="bounded", options={"xatol": 1e-10}).fun
    _, _, signal, prior = draw(2, rows=1, dimension=100, nonzeros=nonzeros)
    assert rows_needed(signal, prior, Program(weight=0.3)).tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_rows_are_those_of_the_mean_squared_distance_to_the_subgradients():
    _, _, signal, prior = draw(1, rows=1, dimension=30, nonzeros=4)
    signal, prior = signal[0].numpy(), prior[0].numpy()
    normal = np.random.default_rng(0).standard_normal((40_000, 30))
    centre, width = np.sign(signal) * PFEDME.weight, (signal == 0) * PFEDME.weight
    centre = centre - PFEDME.correlation * prior + PFEDME.ridge * signal

    def distance(t):
        nearest = np.clip(normal, t * (centre - width), t * (centre + width))
        return ((normal - nearest) ** 2).sum(1).mean()

    expected = minimize_scalar(distance, bounds=(0, 10), method="bounded").fun
    found = rows_needed(torch.from_numpy(signal), torch.from_numpy(prior), PFEDME)
    assert float(found) == pytest.approx(expected, rel=0.01)  # the standard error is 0.2 %


def test_a_perfect_prior_leaves_only_the_support_to_find():
    # its rows fix the entries on the support if the others are known to be zero
    _, _, signal, prior = draw(3, rows=1, error=0.0)
    assert rows_needed(signal, prior, Program(correlation=1.0)).tolist() == pytest.approx([4] * 3, abs=1e-4)
    torch.testing.assert_close(
        rows_needed(signal, prior, Program(correlation=1.0, ridge=1.0)), rows_needed(signal, prior, PLAIN)
    )


def success(problems, program, **options):
    """Share of the signals that are recovered."""
    solutions = sparse_solution(problems, program, radius=1e-3, **options)
    return float(recovered(solutions, problems.signal).double().mean())


@pytest.mark.slow
def test_success_rises_with_the_rows_from_none_to_all_around_the_rows_that_are_needed():
    for program in (PLAIN, FEDMAC, PFEDME):
        rates, (middle,) = [], rows_needed(*draw(1, rows=1, dimension=40)[2:], program).round().int().tolist()
        for rows in (middle // 3, middle, 2 * middle):
            rates.append(success(draw(30, rows, dimension=40, noise=1e-3), program, iterations=500))
        assert rates[0] < 0.1 < rates[1] < 0.9 < rates[2], program


@pytest.mark.slow
def test_fedmacs_program_needs_fewer_rows_when_the_prior_has_the_signs_of_the_signal():
    problems = draw(40, rows=10, dimension=40, noise=1e-3)
    assert success(problems, FEDMAC) > 0.85
    assert max(success(problems, PLAIN), success(problems, PFEDME)) < 0.35
    assert success(problems._replace(prior=-problems.prior), FEDMAC) == 0
