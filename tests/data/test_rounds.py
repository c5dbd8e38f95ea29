from itertools import chain, islice

import numpy as np
import pytest
import torch
from fakes.cohorts import examples_of

from pfl_lightning.bounds import MOST
from pfl_lightning.data import Round
from pfl_lightning.data.rounds import EvalLoader, RoundLoader, check_rounds
from pfl_lightning.errors import PflError


def test_a_number_of_rounds_is_positive_and_can_be_counted():
    check_rounds(1)
    check_rounds(MOST)
    for rounds in (0, MOST + 1):
        with pytest.raises(PflError, match=rf"^trainer\.max_steps must be .*, got {rounds}$"):
            check_rounds(rounds)


def test_round_is_made_only_when_it_is_asked_for():
    made = []
    rounds = iter(RoundLoader(made.append, 5))
    for expected in ([0], [0, 1]):
        next(rounds)
        assert made == expected


def test_restored_loader_continues_behind_the_last_round_and_may_have_more():
    for done in range(6):
        loader, restored = (RoundLoader(lambda index: index, rounds) for rounds in (5, 6))
        first = list(islice(loader, done))
        restored.load_state_dict(loader.state_dict())
        assert first + list(restored) == [0, 1, 2, 3, 4, 5]


def test_evaluations_cover_every_client_once():
    for clients, at_once in ((1, 4), (7, 4), (8, 4), (9, 4), (5, 1)):
        loader = EvalLoader(torch.Tensor.tolist, torch.arange(clients), at_once)
        steps = list(loader)
        assert list(chain(*steps)) == list(range(clients))
        assert max(map(len, steps)) <= at_once
        assert len(loader) == len(steps)


def test_participants_that_are_not_chosen_are_remembered():
    weights = torch.tensor([0.3, 0.25, 0.25, 0.15, 0.05], dtype=torch.float64)
    whole = Round(0, 1, 5, examples_of(), weights, np.arange(5.0), 0.0)
    assert len(whole.left_out) == 0
    once = whole.take(torch.tensor([True, False, True, True, False]))
    twice = once.take(torch.tensor([False, True, True]))
    assert once.left_out.tolist() == [1, 4]
    assert twice.left_out.tolist() == [1, 4, 0]
    assert twice.examples.ids.tolist() == [2, 3]
    assert twice.times.tolist() == [2.0, 3.0]
    torch.testing.assert_close(twice.weights, torch.tensor([0.625, 0.375], dtype=torch.float64))


def test_what_is_lost_is_waited_for_and_received_but_not_weighed():
    weights = torch.tensor([0.3, 0.25, 0.25, 0.15, 0.05], dtype=torch.float64)
    whole = Round(0, 1, 5, examples_of(), weights, np.arange(5.0), 0.0)
    assert whole.drop(torch.zeros(5, dtype=torch.bool)) is whole
    once = whole.drop(torch.tensor([False, True, False, False, True]))
    assert (once.examples.ids.tolist(), once.dropped.tolist(), once.times.tolist()) == (
        [0, 2, 3],
        [1, 4],
        [0.0, 2.0, 3.0],
    )
    torch.testing.assert_close(once.weights, torch.tensor([3, 2.5, 1.5], dtype=torch.float64) / 7)
    everything = once.drop(torch.ones(3, dtype=torch.bool))
    assert len(everything.examples) == 0
    for batch in (whole, once, everything):
        ids, times = batch.awaited
        assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == {client: float(client) for client in range(5)}
        assert sorted(batch.participants.tolist()) == list(range(5))
