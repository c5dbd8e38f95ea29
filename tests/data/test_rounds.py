from itertools import chain, islice

import pytest

from pfl_lightning.data.rounds import JudgementLoader, RoundLoader


def test_rounds_are_counted_from_zero():
    loader = RoundLoader(lambda index: index, 5)
    assert len(loader) == 5
    assert list(loader) == [0, 1, 2, 3, 4]


def test_round_is_made_only_when_it_is_asked_for():
    made = []
    rounds = iter(RoundLoader(made.append, 5))
    for expected in ([0], [0, 1]):
        next(rounds)
        assert made == expected


@pytest.mark.parametrize("done", range(6))
def test_restored_loader_continues_behind_the_last_round(done):
    loader, restored = RoundLoader(lambda index: index, 5), RoundLoader(lambda index: index, 5)
    first = list(islice(loader, done))
    restored.load_state_dict(loader.state_dict())
    assert first + list(restored) == [0, 1, 2, 3, 4]


def test_restored_loader_may_have_more_rounds():
    loader = RoundLoader(lambda index: index, 2)
    list(loader)
    longer = RoundLoader(lambda index: index, 4)
    longer.load_state_dict(loader.state_dict())
    assert list(longer) == [2, 3]


@pytest.mark.parametrize(("clients", "at_once"), [(1, 4), (7, 4), (8, 4), (9, 4), (5, 1)])
def test_judgements_cover_every_client_once(clients, at_once):
    loader = JudgementLoader(lambda positions: list(range(clients))[positions], clients, at_once)
    steps = list(loader)
    assert list(chain(*steps)) == list(range(clients))
    assert max(map(len, steps)) <= at_once
    assert len(loader) == len(steps)
