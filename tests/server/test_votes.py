"""Votes of the server against their closed forms, and methods whose clients turn against it."""

from functools import partial

import pytest
import torch
from fakes.methods import distance

from pfl_lightning.errors import PflError
from pfl_lightning.methods import IFCA, DeltaFL, FedAvg, FedRep
from pfl_lightning.server import Aggregator, Median, TrimmedMean, Vote, WeightedVote
from pfl_lightning.system import Asynchronous, Participation

RULES = [Median, TrimmedMean]
every_rule = pytest.mark.parametrize("rule", RULES)


def voted(vote, rows, weights=None, chunks=1):
    """What a vote makes of the clients' rows, which arrive in chunks, the last one first."""
    rows = torch.as_tensor(rows)
    weights = torch.full((len(rows),), 1 / len(rows)) if weights is None else torch.tensor(weights)
    ballot = vote.start(torch.arange(len(rows)), (1,), received={"w": torch.zeros_like(rows[0])})
    for places in reversed(torch.arange(len(rows)).chunk(chunks)):
        ballot.add(places, ballot.encode(places, weights[places], {"w": rows[places], "loss": rows[places].sum(1)}))
    ballot.join(some_lack=False)
    return ballot.result()


ROWS = torch.tensor([[1.0, 7.0], [2.0, -1.0], [9.0, 3.0], [4.0, 5.0], [3.0, 1.0]])


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_a_median_is_in_the_middle_of_each_entry(chunks):
    assert voted(Median(), ROWS, chunks=chunks)["w"].tolist() == [3.0, 3.0]
    assert voted(Median(), ROWS[:4], chunks=chunks)["w"].tolist() == [3.0, 4.0]


def test_a_trimmed_mean_leaves_out_the_ends_of_each_entry():
    assert voted(TrimmedMean(0.2), ROWS)["w"].tolist() == [3.0, 3.0]  # (2 + 4 + 3) / 3 and (3 + 5 + 1) / 3
    assert voted(TrimmedMean(0.0), ROWS)["w"].tolist() == pytest.approx([3.8, 3.0])
    assert voted(TrimmedMean(0.4), ROWS)["w"].tolist() == voted(Median(), ROWS)["w"].tolist()
    assert voted(TrimmedMean(0.2), ROWS[:4])["w"].tolist() == [4.0, 3.5]  # a fifth of four is no whole client


@every_rule
def test_equal_models_are_the_model_and_what_travels_beside_them_is_a_weighted_mean(rule):
    result = voted(rule(), torch.full((3, 2), 2.5), weights=[0.5, 0.3, 0.2])
    assert result["w"].tolist() == [2.5, 2.5]
    assert result["loss"].item() == pytest.approx(5.0)
    assert voted(rule(), ROWS, weights=[1.0, 0.0, 0.0, 0.0, 0.0])["loss"].item() == 8.0


@every_rule
def test_a_model_that_is_not_finite_does_not_count_and_without_any_other_nothing_moves(rule):
    rows = torch.cat([ROWS, torch.tensor([[torch.nan, 0.0], [torch.inf, 0.0]])])
    assert voted(rule(), rows)["w"].tolist() == voted(rule(), ROWS)["w"].tolist()
    assert voted(rule(), torch.full((2, 2), torch.nan))["w"].tolist() == [0.0, 0.0]


@every_rule
@pytest.mark.parametrize("far", [1e3, 1e30])
def test_a_fifth_of_the_clients_cannot_leave_the_range_of_the_others(rule, far):
    attacked = torch.cat([ROWS[:4], torch.full((1, 2), far)])
    result = voted(rule(), attacked)["w"]
    assert (result >= ROWS[:4].min(0).values).all()
    assert (result <= ROWS[:4].max(0).values).all()


class Turned(FedAvg):
    """The first client sends the opposite of its change, a hundred times."""

    def local_update(self, cohort, received, key):
        trained, losses = super().local_update(cohort, received, key)
        for name in self.engine.trainable:
            start = received.tree[name]
            bad = cohort.ids == 0
            trained.own[name][bad] = (101 * start - 100 * trained.own[name])[bad]
        return trained, losses


@every_rule
def test_a_client_that_turns_its_change_moves_the_mean_and_hardly_a_vote(rule, train, float64):
    honest = train(FedAvg, 2, weighting="uniform")
    mean, vote = (train(Turned, 2, weighting="uniform", aggregator=make()) for make in (Aggregator, rule))
    assert distance(honest, mean) > 10 * distance(honest, vote)


@every_rule
def test_without_cuts_a_trimmed_mean_is_the_mean_and_chunks_change_nothing(rule, train, float64):
    plain = train(FedAvg, 2, weighting="uniform")
    assert distance(plain, train(FedAvg, 2, weighting="uniform", aggregator=TrimmedMean(0.0))) < 1e-12
    whole, chunks = (train(FedRep, 2, aggregator=rule(), chunk_size=size) for size in (None, 2))
    assert distance(whole, chunks) < 1e-12


class Nearest(WeightedVote):
    """The model with the smallest sum of distances to the others."""

    def weigh(self, products, ids):
        squares = products.diagonal()
        distances = (squares[:, None] + squares - 2 * products).clamp(min=0).sqrt()
        return torch.eye(len(ids), dtype=products.dtype)[distances.sum(1).argmin()]


class Longer(Vote):
    """Returns too many values."""

    def combine(self, rows):
        return rows[0].repeat(2)


def test_a_rule_about_distances_sees_whole_models():
    a, b = torch.tensor([[0.0], [0.1], [9.0]]), torch.tensor([[9.0, 9.0], [0.0, 1.0], [0.0, 0.0]])
    ballot = Nearest().start(torch.arange(3), (1,), received={"a": torch.zeros(1), "b": torch.zeros(2)})
    ballot.add(torch.arange(3), ballot.encode(torch.arange(3), torch.full((3,), 1 / 3), {"a": a, "b": b}))
    ballot.join(some_lack=False)
    found = ballot.result()
    assert (found["a"].tolist(), found["b"].tolist()) == (a[1].tolist(), b[1].tolist()), "those of one client"


def test_a_rule_that_returns_another_shape_is_one_line():
    with pytest.raises(
        PflError, match=r"^model.aggregator: Longer.combine must return .* each of 2 entries, got \[4\]$"
    ):
        voted(Longer(), ROWS)


@every_rule
@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (IFCA, {}, "with IFCA, whose clients upload several models"),
        (partial(DeltaFL, quantile="sums"), {}, "for other sums than of models"),
        (FedAvg, {"participation": Asynchronous(4, 2)}, "with Asynchronous"),
    ],
)
def test_what_cannot_be_voted_on_is_one_line(rule, make, options, why, train, ragged_data):
    with pytest.raises(PflError, match=f"^model.aggregator: {rule.__name__} is not possible {why}"):
        train(make, 1, ragged_data(**options), aggregator=rule())


def test_votes_have_a_round_of_any_size(train, ragged_data):
    train(FedAvg, 2, ragged_data(participation=Participation(1)), aggregator=TrimmedMean(0.4))
