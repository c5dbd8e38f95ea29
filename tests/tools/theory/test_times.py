from math import log

import numpy as np
import pytest
from theory.times import (
    equal_stages_ratio,
    expected_order_statistic,
    expected_time,
    stage_sizes,
)


@pytest.mark.parametrize(
    ("cohort", "pool", "seconds"),
    [(20, 20, 3.59774), (64, 64, 4.74389), (100, 100, 5.187378), (10, 100, 0.104807), (50, 100, 0.688172)],
)
def test_expected_seconds_are_differences_of_harmonic_numbers(cohort, pool, seconds):
    # H_N - H_{N-n}: H_20 = 3.59774, H_64 = 4.74389, H_100 = 5.187378
    assert expected_order_statistic(cohort, pool) == pytest.approx(seconds, abs=5e-6)


def test_expected_seconds_are_the_mean_of_simulated_ones():
    # the variance of T_(n) is the sum of (rate j)^-2 from N - n + 1 to N, at most 1.4636 / 4: a standard error of 0.004
    times = np.sort(np.random.default_rng(0).exponential(0.5, (20_000, 5)), axis=1)
    for cohort in range(1, 6):
        assert expected_order_statistic(cohort, 5, rate=2.0) == pytest.approx(times[:, cohort - 1].mean(), abs=0.02)


def test_nobody_takes_no_time():
    assert expected_order_statistic(0, 5) == 0


@pytest.mark.parametrize(
    ("n0", "pool", "sizes"),
    [
        (5, 100, [5, 10, 20, 40, 80, 100]),
        (10, 20, [10, 20]),
        (20, 83, [20, 40, 80, 83]),
        (8, 128, [8, 16, 32, 64, 128]),
        (8, 8, [8]),
        (9, 8, [8]),
    ],
)
def test_stages_double_up_to_the_pool(n0, pool, sizes):
    assert stage_sizes(n0, pool) == sizes


def test_rounds_add_up():
    # E[T_(1) of 2] = 1/2 and E[T_(2) of 2] = 3/2; the communication of 3 rounds takes 30 s, and rate 2 halves the rest
    assert expected_time([1, 1, 2], 2) == pytest.approx(2.5)
    assert expected_time([1, 1, 2], 2, communication_time=10.0, rate=2.0) == pytest.approx(31.25)


def test_equal_stages_have_the_ratios_of_harmonic_numbers():
    # mean over the stages of (H_N - H_{N-n}) / H_N; N = 16: ((H_16 - H_8) / H_16 + 1) / 2 = (.66287 / 3.38073 + 1) / 2
    expected = {8: 1.0, 16: 0.5980, 32: 0.4122, 64: 0.3081, 128: 0.2432, 256: 0.1995, 512: 0.1685, 1024: 0.1455}
    found = {pool: equal_stages_ratio(8, pool) for pool in expected}
    assert found == pytest.approx(expected, abs=5e-5)
    assert all(1 < ratio * log(pool) < 1.3 for pool, ratio in found.items() if pool >= 64), "about 1 / log N"


def test_costly_communication_leaves_no_speedup():
    ratios = [equal_stages_ratio(8, 256, communication) for communication in (0.0, 1.0, 100.0, 1e6)]
    assert ratios == sorted(ratios)
    assert ratios[2] > 0.9
    assert ratios[3] == pytest.approx(1, abs=1e-5)
