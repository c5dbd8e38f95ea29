"""How many rows of random data it takes to find a sparse model, with a prior guess of it.

The rows X and the answers ``y = X theta* + noise`` are given, and a guess w of the sparse theta*. A program finds:

    min  weight |theta|_1 - correlation <theta, w> + ridge / 2 |theta|^2    such that  |y - X theta| <= radius

Without a ridge it is FedMac's, which rewards correlation with w; with ``ridge = correlation`` it is pFedMe's, which
penalises the distance ``correlation / 2 |theta - w|^2``, up to a constant; with only a weight it is plain l1.

Paper: Liu et al., "Sparse Personalized Federated Learning" (FedMac), IEEE TNNLS 2023, arXiv:2107.05330, Theorem 3; the
program is that of Zhang, Cui, Liu, arXiv:1710.10062. Derivations:
docs/evidence/derivations.md, Sparse recovery with a prior.
"""

from collections.abc import Sequence
from math import log, pi, sqrt
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize, softshrink

STEP = 0.1  # of the proximal operator, for entries of theta* around 1; changes the speed, not the solution
WIDEST = 1000  # largest t, and the inverse of the smallest, when the weight is 1
SECTIONS = 60  # of the interval of log t, which shrinks by a third each time


class Problems(NamedTuple):
    """Random problems of the same size, all float64.

    Attributes:
        matrix: X, ``[problems, rows, dimension]``.
        answers: y, ``[problems, rows]``.
        signal: theta*, ``[problems, dimension]``.
        prior: w, same shape.
    """

    matrix: Tensor
    answers: Tensor
    signal: Tensor
    prior: Tensor


class Program(NamedTuple):
    """What is minimised.

    Attributes:
        weight: gamma, of the l1 norm, positive.
        correlation: lambda, of the correlation with the prior.
        ridge: Of half the squared norm; lambda for pFedMe's program.
    """

    weight: float = 1.0
    correlation: float = 0.0
    ridge: float = 0.0


def draw_problems(
    number: int, rows: int, dimension: int, nonzeros: int, error: float, noise: float, random: Generator
) -> Problems:
    """Draw problems: random signs in random places, Gaussian rows, and a prior that is off by a uniform error.

    Args:
        number: Number of problems.
        rows: Rows of X, whose entries are drawn from N(0, 1 / rows).
        dimension: Length of theta*.
        nonzeros: Entries of theta* that are 1 or -1; the others are zero.
        error: Largest difference between w and theta*, in any entry.
        noise: Euclidean norm of the noise, which has a random direction.
        random: Source of randomness.
    """
    size = (number, dimension)
    chosen = _uniform(size, random).argsort(-1) < nonzeros
    signal = chosen * _normal(size, random).sign()
    prior = signal + error * (2 * _uniform(size, random) - 1)
    matrix = _normal((number, rows, dimension), random) / sqrt(rows)
    direction = normalize(_normal((number, rows), random), dim=-1)
    return Problems(matrix, _times(matrix, signal) + noise * direction, signal, prior)


def sparse_solution(problems: Problems, program: Program, radius: float, iterations: int = 1000) -> Tensor:
    """Solve all problems by Douglas-Rachford splitting.

    Theta and its answers ``r = X theta`` are kept apart: the objective of theta and the ball of r around y have
    proximal operators in closed form, and so has the subspace of all pairs that belong together. Without a ridge a
    solution exists whatever the rows are if ``correlation * max |prior| <= weight``: otherwise the objective can fall
    forever along an entry; see docs/evidence/derivations.md, Sparse recovery with a prior.

    Args:
        problems: The problems; their signals are not used.
        program: What is minimised.
        radius: Allowed norm of ``y - X theta``, usually that of the noise.
        iterations: Number of steps.

    Returns:
        Solutions, ``[problems, dimension]``.
    """
    matrix, answers, _, prior = problems
    weight, correlation, ridge = program
    inverse = torch.linalg.inv(torch.eye(matrix.shape[-1]).to(matrix) + matrix.mT @ matrix)
    a, b = torch.zeros_like(prior), torch.zeros_like(answers)
    for _ in range(iterations):
        theta = softshrink(a + STEP * correlation * prior, STEP * weight) / (1 + STEP * ridge)
        near = answers + _in_ball(b - answers, radius)
        reflected, beside = 2 * theta - a, 2 * near - b
        together = _times(inverse, reflected + _times(matrix.mT, beside))
        a, b = a + together - theta, b + _times(matrix, together) - near
    return theta


def recovered(solution: Tensor, signal: Tensor, tolerance: float = 0.01) -> Tensor:
    """Whether solutions are right up to a relative error.

    Args:
        solution: What was found, ``[..., dimension]``.
        signal: theta*, same shape.
        tolerance: Largest ``|theta - theta*| / |theta*|``.

    Returns:
        Booleans, ``[...]``.
    """
    right: Tensor = (solution - signal).norm(dim=-1) <= tolerance * signal.norm(dim=-1)
    return right


def support_subgradient(signal: Tensor, prior: Tensor, program: Program) -> Tensor:
    """Squared norm of the objective's subgradient at theta* on the entries where theta* is not zero, d_on.

    Formula: ``d_on = sum_i (weight sign(theta*_i) - correlation w_i + ridge theta*_i)^2`` over these entries.

    It is ``weight^2 |support|`` for plain l1, and smaller for FedMac's program if the prior has the signs of theta* and
    ``0 < correlation |w_i| < 2 weight``. With pFedMe's ridge only the error ``theta* - w`` is beside the sign, so the
    best prior, ``w = theta*``, gains nothing.

    Args:
        signal: theta*, ``[..., dimension]``.
        prior: w, same shape.
        program: What is minimised.

    Returns:
        Numbers, ``[...]``.

    Examples:
        >>> signal, prior = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([0.5, 0.0, -1.0])
        >>> float(support_subgradient(signal, prior, Program(correlation=1.0)))  # (1 - 0.5)^2 + 0
        0.25
    """
    weight, correlation, ridge = program
    gradient = weight * signal.sign() - correlation * prior + ridge * signal
    return (gradient * (signal != 0)).square().sum(-1)


def rows_needed(signal: Tensor, prior: Tensor, program: Program) -> Tensor:
    """About how many Gaussian rows it takes to find theta* without noise; half of all problems succeed there.

    Formula: the smallest ``|support| + t^2 d_on + sum_i E dist^2(g, t D_i)`` over t > 0, with a standard normal g and
    the interval ``D_i = [-weight, weight] - correlation w_i`` of subgradients for each entry where theta* is zero.

    Paper: Amelunxen, Lotz, McCoy, Tropp, "Living on the edge: phase transitions in convex programs with random data",
    Information and Inference 2014, arXiv:1303.6672, Theorem II.

    Args:
        signal: theta*, ``[..., dimension]``.
        prior: w, same shape.
        program: What is minimised.

    Returns:
        Numbers between ``|support|`` and the dimension, ``[...]``.
    """
    on, squared = signal != 0, support_subgradient(signal, prior, program)
    ends = [program.weight + sign * program.correlation * prior for sign in (1, -1)]

    def bound(log_t: Tensor) -> Tensor:
        t = log_t.exp()
        beyond = torch.stack([_excess(t[..., None] * end) for end in ends]).sum(0)
        return on.sum(-1) + t.square() * squared + (beyond * ~on).sum(-1)

    usual = torch.full_like(squared, -log(program.weight))
    low, high = usual - log(WIDEST), usual + log(WIDEST)
    for _ in range(SECTIONS):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        falls = bound(left) > bound(right)
        low, high = torch.where(falls, left, low), torch.where(falls, high, right)
    return bound((low + high) / 2)


def _uniform(size: Sequence[int], random: Generator) -> Tensor:
    return torch.rand(size, generator=random, dtype=torch.float64)


def _normal(size: Sequence[int], random: Generator) -> Tensor:
    return torch.randn(size, generator=random, dtype=torch.float64)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    products: Tensor = (matrices @ vectors[..., None])[..., 0]
    return products


def _in_ball(vectors: Tensor, radius: float) -> Tensor:
    """The nearest points of a ball around zero."""
    norms = vectors.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
    near: Tensor = vectors * (radius / norms).clamp(max=1)
    return near


def _excess(bounds: Tensor) -> Tensor:
    """``E max(g - u, 0)^2`` of a standard normal g, for each bound u."""
    density = (-bounds.square() / 2).exp() / sqrt(2 * pi)
    excess: Tensor = (1 + bounds.square()) * torch.special.ndtr(-bounds) - bounds * density
    return excess
