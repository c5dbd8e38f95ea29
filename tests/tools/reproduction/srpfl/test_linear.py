import numpy as np
import pytest
from reproduction.srpfl import linear


def run_with(*cohort_sizes: int):
    recorder = linear.Recorder(linear.problem(2, 0.0, seed=0))
    recorder.cohort_sizes = list(cohort_sizes)
    return recorder


def test_a_time_ratio_is_that_of_each_seed():
    # E[T_(1) of 2] / E[T_(2) of 2] = (1/2) / (3/2)
    pairs = [(run_with(2), run_with(1)), (run_with(2), run_with(2))]
    assert linear.time_ratios(pairs, 2) == pytest.approx([1 / 3, 1])
    assert linear.time_ratios(pairs, 2, 1.5) == pytest.approx([2 / 3, 1])


def test_a_floor_is_the_mean_distance_of_the_last_rounds():
    runs = {8: np.array([[9.0, 1.0, 3.0], [9.0, 5.0, 5.0]])}
    assert linear.floor_of(runs, last=2)[8].tolist() == [2, 5]


def test_the_safe_rate_is_one_that_the_theorem_allows_whoever_takes_part():
    heads = linear.problem(64, 0.0, seed=1).heads
    # one participant alone has the largest singular value
    largest = max(np.linalg.norm(head) for head in heads)
    assert 1 / (8 * largest**2) + 1e-12 >= linear.SAFE_RATE
    assert linear.RATE > 4 * linear.SAFE_RATE


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_rate_of_a_run_is_the_one_that_is_asked_for():
    fast, safe = (linear.moments_run(8, 0.0, seed=1, lr=lr, rounds=3) for lr in (linear.RATE, linear.SAFE_RATE))
    assert len(fast) == 4
    assert fast[0] == safe[0]
    assert fast[-1] < 0.5 * safe[-1]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_race_ends_with_the_pool_and_sooner_for_srpfl():
    fedrep, srpfl = linear.race(16, 16, seed=0), linear.race(16, 8, seed=0)
    assert set(fedrep.cohort_sizes) == {16}
    assert srpfl.cohort_sizes == sorted(srpfl.cohort_sizes)
    assert {srpfl.cohort_sizes[0], srpfl.cohort_sizes[-1]} == {8, 16}
    assert linear.time_ratios([(fedrep, srpfl)], 16)[0] < 0.6
    assert fedrep.distances[0] == srpfl.distances[0]
    assert max(fedrep.distances[-1], srpfl.distances[-1]) <= 1.25 * linear.FLOOR / 4
