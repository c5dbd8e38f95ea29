from math import ceil, log, log2, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory.times import expected_order_statistic, stage_sizes

TIMES = [expected_order_statistic(size, 256) for size in stage_sizes(8, 256)]  # of 6 stages


# Stages of doubling, after docs/evidence/derivations.md: a is the contraction, C the communication time. Eq. (11) of
# SRPFL says nothing of the first stages: the fixed point is above 2 in stage 0, and a distance is at most 1


def next_distance(distance, stage, a):
    """The bound on the distance after a round, eq. (11), with 2^stage n0 participants."""
    return sqrt(1 - a) * distance + a / sqrt(2**stage * (1 - a))


def stage_floor(stage, a):
    """The fixed point f_r of eq. (11), at which a stage makes no progress any more."""
    return a / (sqrt(2**stage * (1 - a)) * (1 - sqrt(1 - a)))


def switching_distance(stage, a, seconds, next_seconds):
    """The distance f_r (1 + g_r) below which the next stage makes more progress per second."""
    return stage_floor(stage, a) * (1 + (1 - 1 / sqrt(2)) * seconds / (next_seconds - seconds))


def slack(stage, communication):
    """g_r: by which share the switching distance exceeds the floor of the stage that ends."""
    return (TIMES[stage] + communication) * (1 - 1 / sqrt(2)) / (TIMES[stage + 1] - TIMES[stage])


def switching(stage, a, communication):
    """The switching distance X_{r+1} of these times."""
    return switching_distance(stage, a, TIMES[stage] + communication, TIMES[stage + 1] + communication)


def stage_length(stage, a, communication):
    """Rounds from one switching distance to the next, by eq. (11)."""
    before, after = slack(stage - 1, communication), slack(stage, communication)
    return ceil(2 * log((sqrt(2) * (1 + before) - 1) / after) / -log(1 - a))


@given(a=st.floats(1e-3, 0.25), stage=st.integers(0, 8))
def test_floor_is_where_the_bound_stays_and_where_it_goes(a, stage):
    floor = stage_floor(stage, a)
    assert floor == pytest.approx(stage_floor(0, a) / 2 ** (stage / 2))
    assert next_distance(floor, stage, a) == pytest.approx(floor)
    # deviations from the fixed point shrink by sqrt(1 - a)
    assert next_distance(floor + 1, stage, a) - floor == pytest.approx(sqrt(1 - a))


@pytest.mark.parametrize(("a", "floor"), [(0.05, 2.0259784), (0.1, 2.0540926), (0.25, 2.1547005)])
def test_the_first_floor_is_known(a, floor):
    # a / (sqrt(1 - a) (1 - sqrt(1 - a))) = 1 + 1 / sqrt(1 - a)
    assert stage_floor(0, a) == pytest.approx(1 + 1 / sqrt(1 - a))
    assert stage_floor(0, a) == pytest.approx(floor, abs=5e-8)


@given(a=st.floats(1e-3, 0.25))
def test_bound_says_nothing_before_the_third_doubling(a):
    # f_0 > 2, so f_1 and f_2 = f_0 / 2 are above 1
    assert stage_floor(2, a) > 1
    assert stage_floor(3, a) < 1


@pytest.mark.parametrize("stage", range(4))
def test_both_cohorts_make_the_same_progress_per_second_at_the_switching_distance(stage):
    # eq. (11): f_r - f_{r+1} matters because a round of stage r shrinks distance - f_r by 1 - sqrt(1 - a)
    a, communication = 0.1, 0.3
    distance = switching(stage, a, communication)

    def speed(at, cohort):
        return (at - next_distance(at, cohort, a)) / (TIMES[cohort] + communication)

    assert speed(distance, stage) == pytest.approx(speed(distance, stage + 1))
    assert speed(0.99 * distance, stage) < speed(0.99 * distance, stage + 1)


@pytest.mark.parametrize("stage", range(1, 4))
@pytest.mark.parametrize("a", [0.01, 0.1, 0.25])
@pytest.mark.parametrize("communication", [0.0, 10.0])
def test_stage_lasts_until_the_bound_has_reached_the_next_switching(stage, a, communication):
    distance = switching(stage - 1, a, communication)
    target, rounds = switching(stage, a, communication), 0
    while distance > target:
        distance, rounds = next_distance(distance, stage, a), rounds + 1
    assert stage_length(stage, a, communication) == rounds


@pytest.mark.parametrize("stage", range(1, 4))
@pytest.mark.parametrize("a", [0.001, 0.1, 0.25])
def test_the_papers_bound_is_the_exact_length_plus_room_for_rounding_up(stage, a):
    # the exact formula simplifies: sqrt(2) (1 + g_{r-1}) - 1 = (sqrt(2) - 1) (E_r + C) / (E_r - E_{r-1}), and divided
    # by g_r this is sqrt(2) (E_{r+1} - E_r) / (E_r - E_{r-1}), in which C has cancelled; the bound has 2 for sqrt(2)
    increase = (TIMES[stage + 1] - TIMES[stage]) / (TIMES[stage] - TIMES[stage - 1])
    exact = 2 * log(sqrt(2) * increase) / log(1 / (1 - a))
    bound = 2 * log(2 * increase) / log(1 / (1 - a))
    assert exact <= stage_length(stage, a, 7.0) < min(exact + 1, bound)


def seconds_to(accuracy, sizes, pool, a, communication, distance):
    """Seconds until eq. (11) is at ``accuracy`` times the last floor; stages end at their switching distances."""
    times, total = [expected_order_statistic(size, pool) + communication for size in sizes], 0.0
    for size, seconds, later in zip(sizes, times, [*times[1:], None], strict=True):
        stage = log2(size)  # the first stage has one client
        target = accuracy * stage_floor(stage, a) if later is None else switching_distance(stage, a, seconds, later)
        while distance > target:
            distance, total = next_distance(distance, stage, a), total + seconds
    return total


@pytest.mark.parametrize("pool", [16, 64, 256, 1024])
@pytest.mark.parametrize("communication", [0.0, 1.0, 10.0])
@pytest.mark.parametrize(("a", "accuracy", "start"), [(0.05, 1.05, 1.0), (0.1, 1.2, 4.0), (0.25, 1.4, 4.0)])
def test_doubling_takes_at_most_the_share_of_the_time_that_the_paper_proves(pool, communication, a, accuracy, start):
    """Theorem 4.9: (6 (C + 1) + 4 L) / (log N + 2 L), with L = log(1 / (accuracy - 1)); the times have rate 1."""
    rest = pool, a, communication, start
    share = seconds_to(accuracy, stage_sizes(1, pool), *rest) / seconds_to(accuracy, [pool], *rest)
    log_accuracy = log(1 / (accuracy - 1))
    assert share < (6 * (communication + 1) + 4 * log_accuracy) / (log(pool) + 2 * log_accuracy)
