from math import log, log2, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory.times import expected_order_statistic, expected_time, stage_lengths, stage_sizes, switching_distances

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


def one_client_floor(a):
    """The floor of eq. (11) for a single participant, which is the unit of ``switching_distances``, with n0 = 8."""
    return sqrt(8) * stage_floor(0, a)


@pytest.mark.parametrize("stage", range(4))
def test_both_cohorts_make_the_same_progress_per_second_at_the_switching_distance(stage):
    # eq. (11): f_r - f_{r+1} matters because a round of stage r shrinks distance - f_r by 1 - sqrt(1 - a)
    a, communication = 0.1, 0.3
    distance = switching_distances(8, 256, communication)[stage] * one_client_floor(a)
    seconds = [TIMES[cohort] + communication for cohort in (stage, stage + 1)]
    assert distance == pytest.approx(switching_distance(stage, a, *seconds))

    def speed(at, cohort):
        return (at - next_distance(at, cohort, a)) / (TIMES[cohort] + communication)

    assert speed(distance, stage) == pytest.approx(speed(distance, stage + 1))
    assert speed(0.99 * distance, stage) < speed(0.99 * distance, stage + 1)


@pytest.mark.parametrize("a", [0.01, 0.1, 0.25])
@pytest.mark.parametrize("communication", [0.0, 10.0])
def test_a_stage_lasts_until_the_bound_has_reached_the_next_switching_distance(a, communication):
    targets = [each * one_client_floor(a) for each in switching_distances(8, 256, communication)]
    start, rounds = 5 * targets[0], []
    for stage, (distance, target) in enumerate(zip([start, *targets], targets, strict=False)):
        rounds.append(0)
        while distance > target:
            distance, rounds[-1] = next_distance(distance, stage, a), rounds[-1] + 1
    assert stage_lengths(start / one_client_floor(a), sqrt(1 - a), 8, 256, communication) == rounds


@pytest.mark.parametrize("a", [0.001, 0.1, 0.25])
def test_the_papers_bound_is_the_exact_length_plus_room_for_rounding_up(a):
    # the exact formula simplifies: with g_r = X_{r+1} / f_r - 1, sqrt(2) (1 + g_{r-1}) - 1 is (sqrt(2) - 1) (E_r + C) /
    # (E_r - E_{r-1}), and divided by g_r this is sqrt(2) (E_{r+1} - E_r) / (E_r - E_{r-1}), in which C has cancelled;
    # the bound has 2 for sqrt(2)
    lengths = stage_lengths(100.0, sqrt(1 - a), 8, 256, 7.0)
    for stage in range(1, 5):
        increase = (TIMES[stage + 1] - TIMES[stage]) / (TIMES[stage] - TIMES[stage - 1])
        exact = 2 * log(sqrt(2) * increase) / log(1 / (1 - a))
        bound = 2 * log(2 * increase) / log(1 / (1 - a))
        assert exact <= lengths[stage] < min(exact + 1, bound)


@pytest.mark.parametrize("pool", [2, 3, 16, 100])
def test_the_bound_cannot_be_divided_by_what_twice_a_round_takes_more_than_one_of_twice_the_clients(pool):
    # between n and 2 n clients, fewer are left than before, so that 2 E_r - E_{r+1} has no logarithm
    for size in range(1, pool // 2 + 1):
        assert expected_order_statistic(2 * size, pool) > 2 * expected_order_statistic(size, pool)


def test_a_stage_that_is_too_slow_from_the_beginning_has_no_rounds():
    first, second, _ = switching_distances(8, 64)
    assert stage_lengths(1.01 * first, 0.6, 8, 64)[0] == 1
    assert stage_lengths((first + second) / 2, 0.6, 8, 64)[:2] == [0, 2]


def seconds_of(lengths, start, factor, n0, pool, communication, goal):
    """Seconds until the distance is ``goal`` times the floor of the pool, for arrays of the rounds in each stage."""
    *early, last = sizes = stage_sizes(n0, pool)
    *times, slowest = (expected_time([size], pool, communication) for size in sizes)
    distance, total = start, 0.0
    for size, seconds, rounds in zip(early, times, lengths, strict=True):
        distance = 1 / sqrt(size) + factor**rounds * (distance - 1 / sqrt(size))
        total = total + rounds * seconds
    left = np.log((sqrt(last) * distance - 1) / (goal - 1)) / log(1 / factor)
    return total + np.ceil(np.maximum(left, 0) - 1e-9) * slowest


@pytest.mark.parametrize(("n0", "pool"), [(8, 64), (4, 16), (10, 30)])
@pytest.mark.parametrize("communication", [0.0, 1.0])
@pytest.mark.parametrize(("factor", "start", "goal"), [(0.6, 8.0, 1.2), (0.6, 3.0, 1.05), (0.85, 8.0, 1.3)])
def test_no_schedule_is_faster_than_the_derived_one_by_more_than_what_rounding_up_costs(
    n0, pool, communication, factor, start, goal
):
    """Brute force over all lengths of the early stages; the last one goes on until the goal is reached.

    With parts of rounds, going at each distance with the stage that is fastest there is the best one can do. Rounding
    up takes less than a round of each stage more, and then every stage begins at its switching distance or below.
    """
    rest = start, factor, n0, pool, communication, goal
    lengths = stage_lengths(*rest[:-1])
    grid = np.meshgrid(*(np.arange(2 * length + 8) for length in lengths), indexing="ij")
    best = seconds_of(grid, *rest).min()
    derived = float(seconds_of(lengths, *rest))
    times = [expected_time([size], pool, communication) for size in stage_sizes(n0, pool)]
    assert best <= derived < best + sum(times)
    assert seconds_of([1 for _ in lengths], *rest) > derived
    unrounded = with_parts_of_rounds(*rest, times)
    assert derived - sum(times) < unrounded <= best


def with_parts_of_rounds(start, factor, n0, pool, communication, goal, times):
    """Seconds of the schedule that leaves each stage at its switching distance, after a part of a round if need be."""
    distance, total = start, 0.0
    targets = [*switching_distances(n0, pool, communication), goal / sqrt(pool)]
    for size, seconds, target in zip(stage_sizes(n0, pool), times, targets, strict=True):
        if distance > target:
            total += seconds * log((distance - size**-0.5) / (target - size**-0.5)) / log(1 / factor)
            distance = target
    return total


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
