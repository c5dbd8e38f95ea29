import copy
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from pfl_lightning.errors import PflError
from pfl_lightning.system import (
    Asynchronous,
    Constant,
    DynamicExponential,
    FixedExponential,
    Hinge,
    Polynomial,
    UniformTime,
)
from pfl_lightning.system.speeds import FixedSpeeds

RAGGED = FixedExponential(seed=3)


def updates(participation, count, clients=12, speeds=RAGGED, communication_time=0.0, seed=1):
    times = partial(speeds.times, num_clients=clients)
    return [participation.update(index, seed, clients, times, communication_time) for index in range(count)]


def in_plain_python(buffer, count, clients, speeds, communication_time):
    """Which clients upload in each update, with which version and when, where all of them train at the same time."""
    begun = dict.fromkeys(range(clients), (0.0, 0))
    waiting, uploads, found = [], [], []
    while len(found) < count:
        arrivals = {
            client: time + (speeds.times(version, clients)[client] + communication_time)
            for client, (time, version) in begun.items()
        }
        client = min(arrivals, key=lambda each: (arrivals[each], each))
        now = arrivals[client]
        uploads.append((client, begun.pop(client)[1]))
        if len(uploads) == buffer:
            found.append((uploads, now))
            waiting, uploads = waiting + uploads, []
        if now not in [arrivals[other] for other in begun]:
            begun |= {each: (now, len(found)) for each, _ in waiting}
            waiting = []
    return found


@pytest.mark.parametrize("communication_time", [0.0, 0.7])
@pytest.mark.parametrize(
    "speeds", [RAGGED, DynamicExponential(seed=2), UniformTime()], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("buffer", [1, 3, 5, 12])
def test_order_times_and_versions_are_those_of_a_plain_simulation(buffer, speeds, communication_time):
    found = updates(Asynchronous(buffer=buffer), 40, 12, speeds, communication_time)
    expected = in_plain_python(buffer, 40, 12, speeds, communication_time)
    assert [([(each.client, each.began) for each in one.uploads], one.total) for one in found] == expected
    assert buffer == 12 or any(each.began < index for index, one in enumerate(found) for each in one.uploads)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"max_staleness": 2}], ids=str)
@pytest.mark.parametrize("communication_time", [0.0, 2.0])
def test_as_many_train_at_every_time_and_each_from_the_newest_model(options, communication_time):
    found = updates(Asynchronous(4, 2, **options), 200, 30, communication_time=communication_time)
    flights = [flight for one in found for flight in (*one.uploads, *one.dropped)]
    starts = [flight.total - (flight.seconds + communication_time) for flight in flights]
    ends, made = np.array([0.0, *(flight.total for flight in flights)]), np.array([one.total for one in found])
    for flight, start in zip(flights, starts, strict=True):
        assert np.abs(ends - start).min() < 1e-9, "one begins when another one ends"
        assert flight.seconds == RAGGED.times(0, 30)[flight.client]
        assert flight.began == (made <= start + 1e-9).sum()
    missing = []
    for moment in np.linspace(0, found[150].total, 300) + 1e-6:
        flying = [f.client for f, start in zip(flights, starts, strict=True) if start <= moment < f.total]
        assert len(set(flying)) == len(flying)
        missing.append(4 - len(flying))
    assert missing == sorted(missing), "only last flights, which have not ended, are in no update"
    assert missing[0] == 0
    assert missing[-1] < 4
    assert (np.diff(made) >= 0).all()


def test_a_client_is_once_in_an_update_and_the_others_are_drawn_equally_often():
    found = updates(Asynchronous(5, 3), 4000, 20, UniformTime())
    assert all(len({flight.client for flight in one.uploads}) == 3 for one in found)
    # 12,000 uploads of 20 clients: mean 600, and binomial at most, of standard deviation 24
    counts = Counter(flight.client for one in found for flight in one.uploads)
    assert all(count == pytest.approx(600, abs=100) for count in counts.values())
    assert [one.heard for one in found[-3:]] == [1.0] * 3
    assert found[0].heard == 3 / 20


def test_all_uploads_of_an_instant_are_taken_before_others_begin():
    first, second, third = updates(Asynchronous(6, 2), 3, 12, UniformTime())
    assert (first.total, second.total, third.total) == (1, 1, 1)
    assert {flight.began for one in (first, second, third) for flight in one.uploads} == {0}
    assert (first.held, second.held, third.held) == ([0], [0], [])


def test_dropped_uploads_are_not_heard_and_their_share_is_that_asked_for():
    found = updates(Asynchronous(6, 2, dropout=0.25), 2000)
    dropped = sum(len(one.dropped) for one in found)
    # of each 4 flights one: 4,000 uploads go with binomially about 1,333, standard deviation 42
    assert dropped == pytest.approx(4000 / 3, abs=170)
    assert all(flight.fails for one in found for flight in one.dropped)
    assert not any(flight.fails for one in found for flight in one.uploads)


@pytest.mark.parametrize("most", [0, 2])
def test_uploads_that_are_too_stale_are_dropped_and_their_versions_not_kept(most):
    found = updates(Asynchronous(8, 2, max_staleness=most), 300)
    waited = [index - flight.began for index, one in enumerate(found) for flight in one.uploads]
    assert max(waited) == most
    assert sum(len(one.dropped) for one in found) > 30
    assert all(index - flight.began > most for index, one in enumerate(found) for flight in one.dropped)
    assert all(index + 1 - version <= most for index, one in enumerate(found) for version in one.held)
    assert any(one.held for one in found) == bool(most)


def test_an_update_is_a_pure_function_of_its_arguments():
    straight = updates(Asynchronous(4, 2, dropout=0.2), 30)
    other = Asynchronous(4, 2, dropout=0.2)
    times = partial(RAGGED.times, num_clients=12)
    assert [other.update(index, 1, 12, times, 0.0) for index in (7, 3, 29, 29)] == [straight[i] for i in (7, 3, 29, 29)]
    assert other.update(29, 2, 12, times, 0.0) != straight[29]
    assert other.update(29, 1, 12, times, 0.5) != straight[29]
    assert other.update(29, 1, 12, times, 0.0) == straight[29]
    assert other.update(30, 1, 12, lambda began: 2 * times(began), 0.0).total > 1.5 * straight[29].total
    assert copy.deepcopy(other).update(29, 1, 12, times, 0.0) == straight[29]


def test_the_clock_without_communication_is_that_of_the_longest_chain():
    *_, last = updates(Asynchronous(1, 1), 50, communication_time=3.0)
    assert last.total - last.compute == pytest.approx(150)  # one client after another
    *_, last = updates(Asynchronous(12, 12), 50, communication_time=3.0)
    assert last.compute == pytest.approx(50 * RAGGED.times(0, 12).max())
    for sizes in ((4, 2), (6, 1), (12, 5)):
        found = updates(Asynchronous(*sizes), 40)  # communication takes no time
        assert [one.compute for one in found] == pytest.approx([one.total for one in found])


def test_the_longest_chain_need_not_be_that_of_the_last_upload():
    class Given(FixedSpeeds):
        def draw(self, random, num_clients):
            return np.array([1.0, 1.0, 15.0])

    found = updates(Asynchronous(buffer=2), 6, 3, Given(), communication_time=10.0)
    # client 2 computes longer than the others, and communicates less often: its third update waits for it after 15 s of
    # computation, and for client 0 after 3 s
    assert [one.uploads[0].client for one in found] == [0, 0, 2, 1, 0, 2]
    assert [one.compute for one in found] == [1, 2, 15, 16, 17, 30]
    assert [one.total for one in found] == [11, 22, 33, 44, 55, 66]


def test_versions_are_no_more_than_the_clients_in_flight_also_of_10_000():
    found = updates(Asynchronous(100, 10), 300, 10_000)
    assert max(len(one.held) for one in found) > 20
    assert all(len(one.held) <= 100 for one in found)
    assert all({flight.began for flight in found[i].uploads} <= {*found[i - 1].held, i} for i in range(1, 300))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"pool_size": 13}, r"data\.participation\.pool_size: 13 .* 1 to 12, the number of clients that train"),
        ({"pool_size": 4, "buffer": 5}, r"data\.participation\.buffer: 5 .* 1 to 4, the number"),
        ({"buffer": 13}, r"data\.participation\.buffer: 13 .* 1 to 12, the number"),
    ],
)
def test_numbers_of_clients_that_are_not_there_are_refused(options, line):
    Asynchronous(12, 12).check(12)
    with pytest.raises(PflError, match=line):
        Asynchronous(**options).check(12)


def test_a_run_in_which_nobody_would_upload_is_refused():
    with pytest.raises(PflError, match=r"data\.participation\.dropout: 1 .* below 1"):
        Asynchronous(dropout=1.0)


@pytest.mark.parametrize(
    ("staleness", "shares"),
    [
        (Constant(), [1, 1, 1, 1]),
        (Polynomial(), [1, 0.5, 1 / 3, 0.25]),  # roots of 1, 4, 9, 16
        (Polynomial(2.0), [1, 1 / 16, 1 / 81, 1 / 256]),
        (Polynomial(0.0), [1, 1, 1, 1]),
        (Hinge(), [1, 1, 1 / 41, 1 / 111]),  # 4 are free
        (Hinge(slope=0.5, free=0), [1, 0.4, 0.2, 1 / 8.5]),
    ],
)
def test_shares_after_0_3_8_and_15_updates(staleness, shares):
    found = staleness(torch.tensor([0.0, 3.0, 8.0, 15.0], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(shares, dtype=torch.float64), rtol=1e-15, atol=0)
