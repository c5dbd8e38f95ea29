"""The published time axes of SRPFL, from speeds, participation, schedule and clock together; time without a server.

How they were recovered: docs/evidence/derivations.md, Time axes of the figures.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory.times import stage_sizes

from pfl_lightning.callbacks import StageDoubling
from pfl_lightning.system import Clock, DynamicExponential, FixedExponential, Participation, TwoPopulation
from pfl_lightning.system.speeds import FixedSpeeds

DOUBLING = StageDoubling(n0=10, rounds_per_stage=10)
SENT140 = StageDoubling(n0=20, rounds_per_stage=[4, 5, 5])


class Given(FixedSpeeds):
    def draw(self, random, num_clients):
        return np.array([0.5, 2.0, 1.0, 4.0, 3.0])


def clocks(speeds, rounds, schedule=None, num_clients=100, pool=None, communication_time=0.0):
    """Let the rounds pass, and yield the clock after each of them."""
    clock, participation = Clock(), Participation(pool)
    for index in range(rounds):
        participation.resize(schedule.n0 << schedule.stage_of(index) if schedule else None)
        _, times = participation.cohort(1, index, np.ones(num_clients), speeds.times(index, num_clients))
        clock.advance(times, communication_time)
        yield clock


def total(*args, **kwargs):
    *_, clock = clocks(*args, **kwargs)
    return clock.total


@pytest.mark.parametrize(
    ("communication_time", "totals"),
    [(0.0, [0.5, 1, 2, 3, 6, 9, 13, 17]), (10.0, [10.5, 21, 32, 43, 56, 69, 83, 97])],
)
def test_round_lasts_as_long_as_its_slowest_client_and_one_communication(communication_time, totals):
    # T = (.5, 2, 1, 4, 3), n0 = 1, tau = 2: cohorts 1, 2, 4, 5, of which the slowest take .5, 1, 3, 4
    schedule = StageDoubling(n0=1, rounds_per_stage=2)
    history = [
        (clock.rounds, clock.total, clock.compute)
        for clock in clocks(Given(), 8, schedule, 5, communication_time=communication_time)
    ]
    computes = [0.5, 1, 2, 3, 6, 9, 13, 17]
    assert history == list(zip(range(1, 9), totals, computes, strict=True))


@pytest.mark.parametrize(
    ("rounds", "schedule", "communication_time", "seconds"),
    [
        (150, DOUBLING, 0.0, 516.2304461),
        (150, DOUBLING, 10.0, 2016.2304461),  # and 150 times 10 s
        (150, DOUBLING, 100.0, 15516.2304461),
        (150, None, 0.0, 674.5966195),
        (100, DOUBLING, 0.0, 291.3649063),
        (120, DOUBLING, 0.0, 381.3111222),
    ],
)
def test_axes_of_the_image_figures(rounds, schedule, communication_time, seconds):
    speeds = FixedExponential(seed=1)
    found = total(speeds, rounds, schedule, communication_time=communication_time)
    assert found == pytest.approx(seconds, abs=5e-7)


@pytest.mark.parametrize(
    ("speeds", "doubling", "full"),
    [
        (FixedExponential(seed=400), 235.4703, 296.1302),
        (TwoPopulation(stragglers=0.1, seed=400), 828.6692, 1085.8262),
        (TwoPopulation(stragglers=0.3, seed=400), 1626.6293, 2108.1912),
    ],
)
def test_axes_of_the_sent140_figures(speeds, doubling, full):
    assert total(speeds, 50, SENT140, num_clients=83) == pytest.approx(doubling, abs=5e-5)
    assert total(speeds, 50, num_clients=83) == pytest.approx(full, abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "doubling", "full"), [(None, 402, 537), (20, 320, 340)])
def test_mean_times_with_dynamic_speeds(pool, doubling, full):
    # means of our simulations, to 3 % (docs/evidence/derivations.md, Time axes of the figures)
    speeds = [DynamicExponential(seed=seed) for seed in range(12)]
    for schedule, seconds in ((DOUBLING, doubling), (None, full)):
        mean = np.mean([total(each, 150, schedule, pool=pool) for each in speeds])
        assert mean == pytest.approx(seconds, rel=0.03)


def test_equal_stages_take_their_expected_share_of_the_time_of_everyone():
    clients, ratio = 64, 0.3081
    # the mean over the stages of (H_N - H_{N-n}) / H_N; a round of all varies by less than 32 %, 600 of them by 1.3 %
    speeds, rounds = DynamicExponential(1.0, 1.0), 200 * len(stage_sizes(8, clients))
    doubling, everyone = (total(speeds, rounds, schedule, clients) for schedule in (StageDoubling(8, 200), None))
    assert doubling / everyone == pytest.approx(ratio, rel=0.03)


def ring(clients):
    eye = np.eye(clients, dtype=bool)
    return np.roll(eye, 1, 0) | np.roll(eye, -1, 0)


def times_of(seed, rounds, clients):
    return np.random.default_rng(seed).exponential(size=(rounds, clients))


def test_without_a_server_clients_wait_for_their_neighbours_alone():
    # 0 - 1 - 2 - 3, of which client 0 takes 5 s and the others 1 s: the delay walks one link in a round
    path = np.abs(np.subtract.outer(range(4), range(4))) == 1
    clock, times = Clock(), np.array([5.0, 1, 1, 1])
    history = []
    for _ in range(3):
        clock.advance_locally(range(4), times, path, communication_time=2.0)
        history.append(([clock.ready[client] for client in range(4)], clock.compute, clock.total))
    assert history == [([5, 5, 1, 1], 5, 7), ([10, 10, 6, 2], 10, 14), ([15, 15, 11, 7], 15, 21)]
    assert clock.rounds == 3


@given(seed=st.integers(0, 99), clients=st.integers(1, 7), rounds=st.integers(1, 6))
@settings(deadline=None)
def test_a_client_is_as_late_as_the_slowest_chain_of_neighbours_before_it(seed, clients, rounds):
    times, hears = times_of(seed, rounds, clients), ring(clients)
    clock = Clock()
    for row in times:
        clock.advance_locally(range(clients), row, hears, 0.0)

    def late(client, round_index):
        if round_index < 0:
            return 0.0
        waits_for = [other for other in range(clients) if hears[client, other] or other == client]
        return max(late(other, round_index - 1) + times[round_index, other] for other in waits_for)

    assert clock.ready == pytest.approx({client: late(client, rounds - 1) for client in range(clients)})
    assert clock.compute == pytest.approx(max(clock.ready.values()))


def test_clients_that_hear_all_others_keep_the_rounds_of_a_server():
    local, server = Clock(), Clock()
    for row in times_of(0, 5, 6):
        local.advance_locally(range(6), row, np.ones((6, 6), dtype=bool), 0.5)
        server.advance(row, 0.5)
    assert local.scalars() == pytest.approx(server.scalars())


def advance_apart(clock, times, communication_time=0.0):
    """A round of clients that hear nobody."""
    hears = np.zeros((len(times), len(times)), dtype=bool)
    clock.advance_locally([*times], np.array([*times.values()]), hears, communication_time)


def test_who_did_not_take_part_begins_when_the_last_round_has_ended_for_all():
    clock = Clock()
    advance_apart(clock, {0: 1.0, 1: 4.0})
    advance_apart(clock, {0: 1.0, 2: 1.0})  # 0 goes on after 1 s, 2 begins after 4 s
    assert clock.ready == {0: 2, 2: 5}
    assert clock.compute == 5
    advance_apart(clock, {1: 1.0, 0: 1.0})
    assert clock.ready == {1: 6, 0: 3}
    assert clock.compute == 6


def test_the_clock_never_goes_back():
    clock = Clock()
    advance_apart(clock, {0: 9.0, 1: 1.0}, communication_time=1.0)
    advance_apart(clock, {1: 1.0}, communication_time=1.0)
    assert (clock.compute, clock.total) == (9, 11)


@pytest.mark.parametrize(
    ("rounds", "charges", "ticks"),
    [(150, 17, {0: 516, 10: 684, 100: 2216}), (100, 28, {0: 288, 10: 568, 100: 3088}), (120, 32, {0: 380, 10: 700})],
)
def test_the_last_ticks_of_the_published_axes_charge_communication_in_few_rounds(rounds, charges, ticks):
    """A tick every four seconds: the last one is the total, rounded down."""
    compute = total(FixedExponential(seed=1), rounds, DOUBLING)
    assert {time: 4 * int((compute + time * charges) // 4) for time in ticks} == ticks


def test_the_stages_of_the_published_figures_round_by_round():
    assert [min(20, 10 << DOUBLING.stage_of(index)) for index in range(150)] == 10 * [10] + 140 * [20]
    assert [min(83, 20 << SENT140.stage_of(index)) for index in range(50)] == 4 * [20] + 5 * [40] + 5 * [80] + 36 * [83]


def test_fresh_speeds_give_the_published_axes_of_figures_5_and_6():
    """2.8e2 and 3.1e4 s, as means over seeds; 120 rounds of Figure 5 are inferred from its axis."""
    fast = [total(DynamicExponential(seed=seed), 120, DOUBLING) for seed in range(8)]
    slow = [total(DynamicExponential(high=100.0, seed=seed), 150, DOUBLING, pool=20) for seed in range(8)]
    assert np.mean(fast) == pytest.approx(284, rel=0.05)
    assert np.mean(slow) == pytest.approx(3.1e4, rel=0.05)
