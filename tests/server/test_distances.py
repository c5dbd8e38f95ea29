"""Votes by distances against plain numpy, and what must hold of every rule."""

from functools import partial

import numpy as np
import pytest
import torch
from fakes.methods import distance, small

from pfl_lightning.errors import PflError
from pfl_lightning.server import (
    Bulyan,
    CenteredClipping,
    FLTrust,
    GeometricMedian,
    Krum,
    Median,
    NearestNeighbours,
    NormClipping,
    TrimmedMean,
)
from pfl_lightning.server.distances import distances_from, fewest_clients, squared_distances
from pfl_lightning.uplink import SignFlip

F = 2
RULES = {
    "median": Median,
    "trimmed": partial(TrimmedMean, 0.2),
    "Krum": Krum,
    "Multi-Krum": partial(Krum, kept=None),
    "Bulyan": partial(Bulyan, 0.15),
    "RFA": GeometricMedian,
    "neighbours, median": NearestNeighbours,
    "neighbours, Krum": lambda: NearestNeighbours(Krum()),
    "norm clipping": NormClipping,
    "clipping": partial(CenteredClipping, 1.0, 3),
    "neighbours, clipping": lambda: NearestNeighbours(CenteredClipping(1.0)),
    "trust": FLTrust,
}
CHOOSE = ("Krum", "Multi-Krum", "Bulyan", "neighbours, Krum")
FROM_START = ("norm clipping", "clipping", "neighbours, clipping", "trust")  # they depend on what clients received
every_rule = pytest.mark.parametrize("name", RULES)


@pytest.fixture
def rows():
    return torch.randn(13, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def voted(rule, rows, start=None, ids=None, cut=4):
    """What a rule makes of the rows of two tensors of a model."""
    start = torch.zeros(rows.shape[1], dtype=rows.dtype) if start is None else start
    ids = torch.arange(len(rows)) if ids is None else ids
    received = {"a": start[:cut].clone(), "b": start[cut:].clone()}
    if not rule.memory:
        rule.memory = {name: tensor.to(rows) for name, tensor in rule.initial_memory(received).items()}
    ballot = rule.start(ids, (1,), received=received)
    weights = torch.full((len(rows),), 1 / len(rows), dtype=rows.dtype)
    for places in torch.arange(len(rows)).chunk(2):
        ballot.add(ids[places], ballot.encode(ids[places], weights, {"a": rows[places, :cut], "b": rows[places, cut:]}))
    ballot.join(some_lack=False)
    result = ballot.result()
    return torch.cat([result["a"], result["b"]])


def krum(u, f, kept=1):
    """Blanchard's rule in numpy."""
    n = len(u)
    distances = ((u[:, None] - u) ** 2).sum(2)
    scores = [np.sort(np.delete(distances[i], i))[: n - f - 2].sum() for i in range(n)]
    return u[np.argsort(scores, kind="stable")[:kept]].mean(0)


def bulyan(u, f):
    left, chosen = list(range(len(u))), []
    while len(chosen) < len(u) - 2 * f:
        rest = u[left]
        distances = ((rest[:, None] - rest) ** 2).sum(2)
        count = max(1, len(rest) - f - 2)
        scores = [np.sort(np.delete(row, i))[:count].sum() for i, row in enumerate(distances)]
        chosen.append(left.pop(int(np.argmin(scores))))
    values = u[sorted(chosen)]
    order = np.argsort(np.abs(values - np.median(values, 0)), 0, kind="stable")[: len(u) - 4 * f]
    return np.take_along_axis(values, order, 0).mean(0)


def weiszfeld(u, steps, smoothing, start):
    z = start
    for _ in range(steps):
        weights = 1 / np.maximum(smoothing, np.linalg.norm(z - u, axis=1))
        z = weights @ u / weights.sum()
    return z


def clipping(u, v, radius, steps):
    for _ in range(steps):
        far = np.linalg.norm(u - v, axis=1)
        v = v + ((u - v) * np.minimum(1, radius / far)[:, None]).mean(0)
    return v


def neighbours(u, f):
    distances = ((u[:, None] - u) ** 2).sum(2)
    return np.stack([u[np.argsort(row, kind="stable")[: len(u) - f]].mean(0) for row in distances])


def trust(u, trusted):
    norm = np.linalg.norm
    others = np.delete(u, trusted, 0)
    scores = np.maximum(0, others @ u[trusted] / norm(others, axis=1) / norm(u[trusted]))
    return (scores * norm(u[trusted]) / norm(others, axis=1)) @ others / scores.sum()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Krum", lambda u: krum(u, F)),
        ("Multi-Krum", lambda u: krum(u, F, len(u) - F)),
        ("Bulyan", lambda u: bulyan(u, 1)),
        ("RFA", lambda u: weiszfeld(u, 4, 1e-5, u.mean(0))),
        ("neighbours, median", lambda u: np.median(neighbours(u, F), 0)),
        ("neighbours, Krum", lambda u: krum(neighbours(u, F), F)),
        ("clipping", lambda u: clipping(u, np.zeros(6), 1.0, 3)),
        ("neighbours, clipping", lambda u: clipping(neighbours(u, F), np.zeros(6), 1.0, 1)),
        ("trust", lambda u: trust(u, 0)),
    ],
)
def test_a_rule_is_the_papers_in_numpy(name, expected, rows):
    np.testing.assert_allclose(voted(RULES[name](), rows).numpy(), expected(rows.numpy()), rtol=0, atol=1e-12)


def test_krum_returns_one_of_its_inputs_bit_for_bit_and_so_does_multi_krum_with_one():
    rows = torch.randn(13, 6, generator=torch.Generator().manual_seed(1))
    start = torch.randn(6, generator=torch.Generator().manual_seed(2))
    found = voted(Krum(), rows, start)
    assert any(torch.equal(found, row) for row in rows)
    assert torch.equal(found, voted(Krum(kept=1), rows, start))


@every_rule
def test_equal_changes_are_the_change(name, rows):
    start, change = rows[:2]
    change = 0.1 * change  # within the radius
    result = voted(RULES[name](), (start + change).repeat(13, 1), start)
    torch.testing.assert_close(result, start + change, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in RULES if name not in FROM_START])
def test_a_shift_of_all_clients_shifts_the_result_and_a_factor_scales_it(name, rows):
    shift = torch.linspace(-3, 3, 6, dtype=torch.float64)
    result = voted(RULES[name](), rows)
    torch.testing.assert_close(voted(RULES[name](), rows + shift), result + shift, rtol=0, atol=1e-11)
    tight = GeometricMedian(smoothing=3e-5) if name == "RFA" else RULES[name]()
    torch.testing.assert_close(voted(tight, 3 * rows), 3 * result, rtol=0, atol=1e-11)


@every_rule
def test_the_order_in_which_clients_arrive_changes_nothing(name, rows):
    order = torch.randperm(13, generator=torch.Generator().manual_seed(3))
    result = voted(RULES[name](), rows)
    assert torch.equal(voted(RULES[name](), rows[order], ids=order), result)


@pytest.mark.parametrize("name", ["median", "trimmed", "Krum", "Bulyan"])
@pytest.mark.parametrize("far", [1e3, 1e30])
def test_attackers_far_away_cannot_leave_the_range_of_the_others(name, far, rows):
    attackers = 1 if name == "Bulyan" else F
    attacked = rows.clone()
    attacked[-attackers:] = far
    honest = rows[:-attackers]
    result = voted(RULES[name](), attacked)
    assert (result >= honest.min(0).values).all()
    assert (result <= honest.max(0).values).all()
    assert voted(TrimmedMean(0.0), attacked).abs().max() > honest.abs().max()


def test_without_assumed_attackers_they_are_the_mean(rows):
    mean = rows.mean(0)
    for rule in (Krum(0.0, None), Bulyan(0.0), NearestNeighbours(TrimmedMean(0.0), 0.0), GeometricMedian(1, 1e9)):
        torch.testing.assert_close(voted(rule, rows), mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(voted(CenteredClipping(1e9), rows), mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(voted(NormClipping(1e9), rows), mean, rtol=0, atol=1e-12)


def test_a_geometric_median_is_the_middle_of_a_line_and_the_centre_of_a_triangle():
    line = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    assert voted(GeometricMedian(200, 1e-9), line, cut=0).item() == pytest.approx(1, abs=1e-3)
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
    assert voted(GeometricMedian(), corners, cut=1).tolist() == pytest.approx([0.5, 0.75**0.5 / 3])
    # the numbers that ByzFL's documentation prints, from 0 on
    nine = np.arange(1.0, 10).reshape(3, 3)
    np.testing.assert_allclose(weiszfeld(nine, 3, 0.1, np.zeros(3)), [3.78788764, 4.78788764, 5.78788764])
    two = torch.tensor([[0.0], [4.0]], dtype=torch.float64)
    assert voted(GeometricMedian(), two, cut=0).item() == pytest.approx(2)


def test_norms_are_clipped_to_their_median_or_a_given_one():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -1.0], [60.0, -80.0]], dtype=torch.float64)  # norms 5, 0, 1, 100
    assert voted(NormClipping(), rows, cut=1).tolist() == pytest.approx([(1.8 + 1.8) / 4, (2.4 - 1 - 2.4) / 4])
    assert voted(NormClipping(10.0), rows, cut=1).tolist() == pytest.approx([(3 + 6) / 4, (4 - 1 - 8) / 4])


def test_clipping_starts_from_the_change_of_the_round_before(rows):
    rule = CenteredClipping(0.5, steps=2)
    first = voted(rule, rows)
    start = torch.full((6,), 7.0, dtype=torch.float64)
    second = voted(rule, rows + start, start)
    np.testing.assert_allclose(first, clipping(rows.numpy(), np.zeros(6), 0.5, 2), atol=1e-12)
    np.testing.assert_allclose(second - start, clipping(rows.numpy(), first.numpy(), 0.5, 2), atol=1e-12)
    assert torch.linalg.vector_norm(second - start - first) <= 1 + 1e-12


def test_trust_neither_counts_length_nor_what_points_away(rows):
    longer = rows.clone()
    longer[3] *= 1000
    torch.testing.assert_close(voted(FLTrust(), longer), voted(FLTrust(), rows), rtol=0, atol=1e-12)
    turned = torch.stack([rows[0], -rows[0], rows[0]])
    torch.testing.assert_close(voted(FLTrust(), turned), rows[0], rtol=0, atol=1e-12)
    start = rows[5]
    away = torch.stack([start + rows[0], start - rows[0]])
    assert torch.equal(voted(FLTrust(), away, start), start), "nobody points in the direction"
    assert torch.equal(voted(FLTrust(7), rows + start, start), start) is False
    assert torch.equal(voted(FLTrust(77), rows + start, start), start), "the trusted client took no part"


def test_identical_attackers_win_where_krum_is_not_allowed():
    values = torch.tensor([[0.0], [0.1], [0.25], [9.0], [9.0]], dtype=torch.float64)
    with pytest.raises(PflError, match=r"^model\.aggregator: Krum needs 15 participants in a round, got 5; see data"):
        voted(Krum(0.4), values, cut=0)
    assert voted(Krum(0.2), values, cut=0).item() == 0.1


@pytest.mark.parametrize(("times", "share"), [(2, 0.0), (2, 0.2), (2, 0.4), (4, 0.2), (4, 0.1), (2, 0.45), (4, 0.24)])
def test_from_the_fewest_clients_on_there_are_enough(times, share):
    fewest = fewest_clients(times, share)
    enough = [n >= times * int(share * n + 1e-9) + 3 for n in range(400)]
    assert all(enough[fewest:])
    assert fewest == 3 or fewest - 1 < times * share * (fewest - 1) + 3


def test_too_many_models_that_are_not_finite_leave_the_model_as_it_was_and_are_counted(rows):
    rule = Krum(0.4)
    lost = torch.cat([rows, torch.full((4, 6), torch.nan, dtype=torch.float64)])
    start = rows[0] + 1
    assert torch.equal(voted(rule, lost, start), start)
    assert rule.scalars()["votes/dropped"] == 4


def test_a_share_of_a_quarter_is_too_much_for_bulyan():
    with pytest.raises(PflError, match=r"^model\.aggregator\.share must be below 0\.25 with Bulyan, got 0\.3$"):
        Bulyan(0.3)


def test_distances_follow_from_products(rows):
    products = rows @ rows.T
    torch.testing.assert_close(squared_distances(products), torch.cdist(rows, rows).square(), rtol=0, atol=1e-12)
    weights = torch.linspace(0, 1, 13, dtype=torch.float64)
    expected = (rows - weights @ rows).norm(dim=1)
    torch.testing.assert_close(distances_from(weights, products), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_run_with_centered_clipping_and_attackers_resumes_bit_for_bit(ragged_data, fit, tmp_path):
    def run(rounds, folder, ckpt_path=None):
        method = small(aggregator=CenteredClipping(0.1), uplink=[SignFlip(0.3, 3.0)])
        return method, fit(method, ragged_data(num_clients=7), rounds, folder, ckpt_path)

    straight, trainer = run(4, "straight")
    run(2, "resumed")
    resumed, resumed_trainer = run(4, "resumed", tmp_path / "resumed/checkpoints/last.ckpt")
    assert distance(straight, resumed) == 0
    assert trainer.callback_metrics == resumed_trainer.callback_metrics
    moved = straight.memory.tree
    assert moved.keys() == straight.shared
    assert all(row.any() for row in moved.values())
