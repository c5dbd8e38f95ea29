from functools import partial

import numpy as np
import pytest
import torch

from pfl_lightning.errors import PflError
from pfl_lightning.system import DynamicExponential, FixedExponential, Participation, UniformTime

SPEEDS = FixedExponential(seed=1)


def cohort_of(participation, clients, seed=1, index=5, speeds=SPEEDS, counts=None):
    """Who takes part in a round, by default of clients with one sample each."""
    counts = np.ones(clients) if counts is None else np.array(counts)
    ids, _ = participation.cohort(seed, index, counts, speeds.times(index, clients))
    return ids


@pytest.mark.parametrize(("pool", "cohort"), [(None, None), (None, 7), (12, None), (12, 7), (12, 40), (30, 1)])
def test_cohort_is_the_fastest_of_a_pool_of_distinct_clients(pool, cohort):
    participation = Participation(pool)
    whole = cohort_of(participation, 30, 4, 9)
    participation.resize(cohort)
    ids, times = participation.cohort(4, 9, np.ones(30), SPEEDS.times(9, 30))
    assert len(set(whole)) == len(whole) == (pool or 30)
    assert set(whole) <= set(range(30))
    assert ids == sorted(whole, key=SPEEDS.times(9, 30).__getitem__)[:cohort]
    np.testing.assert_array_equal(times, SPEEDS.times(9, 30)[ids])


@pytest.mark.parametrize("pool", [None, 6])
def test_equally_fast_clients_are_taken_by_id(pool):
    participation = Participation(pool)
    whole = cohort_of(participation, 10, speeds=UniformTime())
    participation.resize(3)
    assert cohort_of(participation, 10, speeds=UniformTime()) == sorted(whole)[:3]


@pytest.mark.parametrize("speeds", [SPEEDS, DynamicExponential(seed=1)])
def test_cohort_is_a_pure_function_of_seed_and_round(speeds):
    cohort = partial(cohort_of, Participation(5), 50, speeds=speeds)
    assert cohort(1, 2) == cohort_of(Participation(5), 50, 1, 2, speeds)
    assert len({tuple(sorted(cohort(seed, index))) for seed in range(5) for index in range(5)}) == 25


def test_pool_does_not_depend_on_the_speeds():
    pools = [sorted(cohort_of(Participation(5), 50, speeds=FixedExponential(seed=seed))) for seed in (1, 2)]
    assert pools[0] == pools[1]


def test_every_client_is_sampled_equally_often():
    ids = np.concatenate([cohort_of(Participation(5), 20, index=index) for index in range(2000)])
    # binomial(2000, 1/4): mean 500, standard deviation 19.4
    np.testing.assert_allclose(np.bincount(ids, minlength=20), 500, atol=80)


def test_pool_larger_than_the_population_is_refused():
    Participation(20).check(20)
    Participation().check(1)
    with pytest.raises(PflError, match=r"data\.participation\.pool_size: 21 .* 1 to 20"):
        Participation(21).check(20)


def test_samples_double_instead_of_clients():
    # 40 samples in all, 4 at a mean client; speeds are in the order of the ids
    counts = [1, 9, 2, 2, 6, 4, 4, 4, 4, 4]
    participation = Participation()
    for clients, ids in ((1, [0, 1]), (2, [0, 1]), (4, [0, 1, 2, 3, 4]), (8, list(range(8))), (16, list(range(10)))):
        participation.resize(cohort_samples=4 * clients)
        assert cohort_of(participation, 10, speeds=UniformTime(), counts=counts) == ids


def test_doubling_samples_of_equal_clients_is_doubling_clients():
    by_clients, by_samples = Participation(30), Participation(30)
    for size in (1, 3, 7, 30, 60):
        by_clients.resize(size)
        by_samples.resize(cohort_samples=size * np.full(50, 7).mean())
        assert cohort_of(by_clients, 50, counts=[7] * 50) == cohort_of(by_samples, 50, counts=[7] * 50)


def test_uploads_are_lost_at_the_given_rate_whatever_the_cohort():
    ids, times = torch.arange(50), np.ones(50)
    dropped = np.array([Participation(dropout=0.2).drops(1, index, ids, times)[0].numpy() for index in range(400)])
    # binomial(20,000, 1/5): mean 4,000, standard deviation 57; of one client binomial(400, 1/5): 80, 8
    assert dropped.sum() == pytest.approx(4000, abs=230)
    np.testing.assert_allclose(dropped.sum(0), 80, atol=32)
    some = torch.tensor([31, 4, 15])
    assert Participation(dropout=0.2).drops(1, 7, some, np.ones(3))[0].tolist() == dropped[7, some.numpy()].tolist()


@pytest.mark.parametrize(("dropout", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_nobody_and_everybody_drops_out_at_the_ends(dropout, share):
    dropped, times = Participation(dropout=dropout).drops(1, 0, torch.arange(1000), np.ones(1000))
    assert dropped.double().mean() == share
    assert times.tolist() == [1.0] * 1000


def test_uploads_after_the_deadline_are_lost_and_waited_for_until_then():
    dropped, times = Participation(deadline=2.0).drops(1, 0, torch.arange(4), np.array([0.5, 2.0, 2.1, 9.0]))
    assert dropped.tolist() == [False, False, True, True]
    assert times.tolist() == [0.5, 2.0, 2.0, 2.0]


def test_rounding_of_the_mean_brings_no_client_more():
    counts = [4, 4, 4, 4, 4, 4, 5] * 2  # 7 * (58 / 14) is a bit more than 29
    participation = Participation()
    participation.resize(cohort_samples=7 * np.mean(counts))
    assert cohort_of(participation, 14, speeds=UniformTime(), counts=counts) == [*range(7)]
