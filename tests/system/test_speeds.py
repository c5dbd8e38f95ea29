import numpy as np
import pytest
from numpy.random import RandomState

from pfl_lightning.system import DynamicExponential, FixedExponential, TwoPopulation, UniformTime

SPEEDS = [FixedExponential, TwoPopulation, DynamicExponential]


@pytest.mark.parametrize("kind", SPEEDS)
def test_times_are_a_pure_function_of_seed_and_round(kind):
    speeds = kind(seed=3)
    expected = [kind(seed=3).times(index, 20) for index in (0, 5)]
    speeds.times(1, 30)
    np.testing.assert_array_equal([speeds.times(index, 20) for index in (0, 5)], expected)


@pytest.mark.parametrize("kind", SPEEDS)
def test_seeds_give_different_times(kind):
    assert not np.intersect1d(kind(seed=1).times(0, 50), kind(seed=2).times(0, 50)).size


@pytest.mark.parametrize("kind", SPEEDS)
def test_fixed_times_stay_for_ever_and_dynamic_ones_are_new_in_each_round(kind):
    first, last = (kind(seed=3).times(index, 20) for index in (0, 99))
    same = 0 if kind is DynamicExponential else 20
    assert (first == last).sum() == same


def test_fixed_exponential_has_the_order_statistics_behind_the_papers_axes():
    # from RandomState(1).exponential(1.0, 100), sorted; see docs/evidence/derivations.md, Time axes of the figures
    times = np.sort(FixedExponential(seed=1).times(0, 100))
    expected = [0.0968838717, 0.1587095952, 0.5069611621, 1.3900712206, 4.4973107967]
    np.testing.assert_allclose(times[[9, 19, 39, 79, 99]], expected, atol=5e-11)


def test_mean_is_the_scale_and_not_the_rate():
    slow, unit = (FixedExponential(mean=mean, seed=1).times(0, 100) for mean in (4.0, 1.0))
    np.testing.assert_allclose(slow, 4 * unit)


def test_uniform_time_is_one_second_or_as_long_as_requested():
    assert UniformTime().times(7, 3).tolist() == [1, 1, 1]
    assert UniformTime(0.25).times(7, 3).tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("clients", "stragglers", "fast"),
    [(83, 0.1, 74), (83, 0.3, 58), (10, 0.0, 10), (10, 1.0, 0), (100, 0.9, 10)],
)
def test_two_populations_have_their_sizes_and_means(clients, stragglers, fast):
    # int(clients * (1 - stragglers)) are fast; with means 1 and 1e9 no draw of one kind looks like the other
    times = TwoPopulation(stragglers, fast_mean=1.0, slow_mean=1e9, seed=5).times(0, clients)
    draw = RandomState(5)
    expected = [*draw.exponential(1.0, fast), *draw.exponential(1e9, clients - fast)]
    assert (times < 1e3).sum() == fast
    np.testing.assert_array_equal(np.sort(times), np.sort(expected))


def test_stragglers_are_anywhere():
    places = [np.argmax(TwoPopulation(0.05, slow_mean=1e9, seed=seed).times(0, 20)) for seed in range(200)]
    assert set(places) == set(range(20))


@pytest.mark.parametrize(("clients", "high"), [(20, 1.0), (100, 1.0), (100, 100.0), (1, 0.5)])
def test_smallest_mean_time_is_the_largest_over_the_number_of_clients(clients, high):
    # SRPFL's law U[1/M, 1], in any unit of time
    means = DynamicExponential(high=high, seed=1).mean_times(clients)
    np.testing.assert_array_equal(means, RandomState(1).uniform(high / clients, high, clients))


@pytest.mark.slow
def test_dynamic_times_are_exponential_with_each_clients_own_mean():
    # an exponential's deviation is its mean; 4,000 rounds leave an error of 1.6 % in the mean, 2.2 % in the deviation
    speeds = DynamicExponential(low=0.2, high=3.0, seed=2)
    times = np.stack([speeds.times(index, 30) for index in range(4000)])
    means = RandomState(2).uniform(0.2, 3.0, 30)
    np.testing.assert_allclose(times.mean(0), means, rtol=0.08)
    np.testing.assert_allclose(times.std(0), means, rtol=0.11)
