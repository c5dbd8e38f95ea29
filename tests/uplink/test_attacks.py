"""Attacks against their closed forms, and runs in which some clients attack."""

import pytest
import torch
from fakes.methods import built, distance, tensors

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.server import Krum, Mean, Median
from pfl_lightning.system import Attackers
from pfl_lightning.tree import Params
from pfl_lightning.uplink import ALIE, IPM, Clip, Gaussian, MinMax, Scaled, Senders
from pfl_lightning.uplink.attacks import largest_z

CLIENTS, F = 10, 3
FIRST = {"clients": [*range(F)]}  # who attacks
COLLUSIONS = [ALIE(z=0.5, **FIRST), IPM(scale=0.5, **FIRST), MinMax(**FIRST)]
every_collusion = pytest.mark.parametrize("attack", COLLUSIONS, ids=lambda attack: type(attack).__name__)


@pytest.fixture
def rows(float64):
    return {"w": torch.randn(CLIENTS, 4, 3), "b": torch.randn(CLIENTS, 2), "mean": torch.randn(CLIENTS, 2)}


def senders(rows, round_index=0):
    received = {name: torch.full_like(stack[0], 0.5) for name, stack in rows.items()}
    ids = torch.arange(len(rows["w"]))
    return Senders(ids, Params(received, {}), {"w", "b"}, len(ids), (1, "train", round_index), round_index)


def changes(rows):
    return torch.cat([rows[name].flatten(1) - 0.5 for name in ("w", "b")], 1)


def test_an_attack_begins_with_its_first_round(rows):
    attack = Scaled(scale=2.0, first_round=3, **FIRST)
    assert attack(rows, senders(rows, 2))["w"].equal(rows["w"])
    after = attack(rows, senders(rows, 3))
    torch.testing.assert_close(changes(after)[:F], 2 * changes(rows)[:F])
    assert after["w"][F:].equal(rows["w"][F:])
    assert after["mean"] is rows["mean"]


def test_attackers_are_found_by_name():
    attack = Scaled(clients=["b", "d"])
    attack.find(["a", "b", "c", "d"], 4, "model.uplink.clients")
    assert attack.among(1, 4).tolist() == [False, True, False, True]
    with pytest.raises(PflError, match=r"^model.uplink.clients: d is no client; allowed: a to c$"):
        attack.find(["a", "b", "c", "d"], 3, "model.uplink.clients")  # which never trains
    numbered = Attackers(clients=[1])
    numbered.find((), 2, "data.poison.clients")
    assert numbered.among(1, 2).tolist() == [False, True]


def test_noise_has_the_deviation_and_follows_from_the_round_and_the_client(rows):
    wide = {**rows, "w": torch.zeros(CLIENTS, 100, 100)}
    attack = Gaussian(deviation=0.3, clients=[0, 1])
    sent = attack(wide, senders(wide))["w"] - 0.5
    assert sent[0].std().item() == pytest.approx(0.3, rel=0.03)
    assert abs(sent[0].mean()) < 0.01
    assert not sent[0].equal(sent[1])
    assert not sent[0].equal(attack(wide, senders(wide, 1))["w"][0] - 0.5)
    some = {name: stack[1:2] for name, stack in wide.items()}
    alone = attack(some, senders(wide)._replace(ids=torch.tensor([1])))["w"]
    assert alone.equal(sent[1:2] + 0.5)


@every_collusion
def test_colluding_attackers_all_send_the_same_and_others_what_they_have_trained(attack, rows):
    sent = attack(rows, senders(rows))
    for name in ("w", "b"):
        assert sent[name][F:].equal(rows[name][F:])
        assert (sent[name][:F] == sent[name][:1]).all()
    assert sent["mean"] is rows["mean"], "statistics are not attacked"
    again = {name: stack.clone() for name, stack in rows.items()}
    again["w"][:F] = 9.0
    assert attack(again, senders(rows))["w"].equal(sent["w"]), "what they trained themselves does not count"


def test_ipm_turns_a_mean_where_its_closed_form_says(rows):
    honest = changes(rows)[F:].mean(0)
    for scale in (0.1, (CLIENTS - F) / F, 5.0):
        sent = IPM(scale=scale, **FIRST)(rows, senders(rows))
        torch.testing.assert_close(changes(sent).mean(0), honest * (CLIENTS - F - F * scale) / CLIENTS)


def test_alie_is_so_many_standard_deviations_from_the_mean(rows):
    honest = changes(rows)[F:]
    sent = changes(ALIE(z=1.5, **FIRST)(rows, senders(rows)))
    torch.testing.assert_close(sent[0], honest.mean(0) - 1.5 * honest.std(0, correction=0))
    same = {name: stack[-1:].expand_as(stack) for name, stack in rows.items()}
    torch.testing.assert_close(ALIE(**FIRST)(same, senders(rows))["w"], same["w"])


@pytest.mark.parametrize(
    ("clients", "attackers", "z"),
    [(20, 4, 0.157), (20, 5, 0.253), (20, 8, 0.674), (25, 5, 0.253), (60, 12, 0.264), (100, 20, 0.286)],
)
def test_the_default_z_is_that_of_the_table(clients, attackers, z):
    assert largest_z(clients - attackers, attackers) == pytest.approx(z, abs=5e-4)


@pytest.mark.parametrize(("clients", "attackers"), [(20, 1), (20, 2), (21, 1), (2, 1), (3, 2)])
def test_few_attackers_send_the_mean_and_no_z_is_infinite(clients, attackers):
    assert 0.0 <= largest_z(clients - attackers, attackers) < 10


def test_min_max_is_as_far_away_as_it_may_be(rows):
    honest = changes(rows)[F:]
    sent = changes(MinMax(**FIRST)(rows, senders(rows)))[0]
    bound = (honest[:, None] - honest).norm(dim=2).max()
    assert (sent - honest).norm(dim=1).max().item() == pytest.approx(bound.item(), rel=1e-9)
    further = sent - 1e-3 * honest.std(0, correction=0)
    assert (further - honest).norm(dim=1).max() > bound


def test_in_one_dimension_min_max_is_the_smallest_change(rows):
    line = {"w": torch.tensor([0.0, 9.0, 2.0, 3.0, 7.0])[:, None], "b": torch.zeros(5, 1), "mean": torch.zeros(5, 1)}
    assert MinMax(clients=[0])(line, senders(line))["w"][0].item() == pytest.approx(2.0)
    same = {**line, "w": torch.full((5, 1), 4.0)}
    assert MinMax(clients=[0])(same, senders(line))["w"].eq(4.0).all()


@every_collusion
def test_without_honest_or_attacking_clients_in_a_round_nothing_happens(attack, rows):
    for clients in (range(F), range(F, CLIENTS)):
        some = {name: stack[list(clients)] for name, stack in rows.items()}
        after = attack(some, senders(rows)._replace(ids=torch.tensor([*clients])))
        assert all(after[name].equal(some[name]) for name in some)


# Runs


@every_collusion
@pytest.mark.parametrize("vote", [Mean, Krum])
def test_chunks_change_nothing(attack, vote, train, float64):
    def run(chunk_size):
        attack = type(COLLUSIONS[0])(z=0.5, share=0.3)
        return train(FedAvg, 2, aggregator=vote(), uplink=[attack, Clip(0.5)], chunk_size=chunk_size)

    assert distance(run(None), run(1)) < 1e-12


def test_steps_after_a_collusion_see_what_the_attackers_send(train, ragged_data):
    start = tensors(built(FedAvg, ragged_data()).network)

    def moved(uplink):
        return distance(start, tensors(train(FedAvg, 1, aggregator=Mean(), uplink=uplink).network))

    huge = IPM(0.5, scale=1e6)
    assert moved([huge]) > 1e3
    assert moved([huge, Clip(0.1)]) <= 0.1
    assert moved([Clip(0.1), huge]) > 1e3


def test_an_attack_that_sees_all_models_needs_a_vote(ragged_data):
    line = "^model.aggregator: Aggregator is not possible with ALIE, which must see all models of a round; allowed: "
    with pytest.raises(PflError, match=f"{line}Mean, or another vote$"):
        built(FedAvg, ragged_data(), uplink=[ALIE()])


def test_attackers_are_scored_apart_and_their_weight_is_logged(ragged_data, fit):
    data = ragged_data()
    method = FedAvg(uplink=[Scaled(scale=100.0, clients=[1, 4])], aggregator=Krum())
    logged = fit(method, data, 2).callback_metrics
    assert data.attackers.nonzero()[:, 0].tolist() == [1, 4]
    batch = data.make_eval_batch(torch.arange(data.num_clients))
    for split, examples in batch.evaluated.items():
        has_samples = examples.counts > 0
        assert not has_samples[data.attackers].any() if split != "attackers" else not has_samples[~data.attackers].any()
    assert (batch.train.counts > 0)[data.attackers].all(), "they train all the same"
    assert {"attackers/global/accuracy/mean", "test/global/accuracy/mean", "test/accuracy"} <= logged.keys()
    assert logged["votes/attackers"] == 0.0


def test_a_mean_of_all_clients_gives_attackers_their_share(ragged_data, fit):
    method = FedAvg(uplink=[Scaled(0.34)], aggregator=Krum(share=0.0, kept=None))
    logged = fit(method, ragged_data(), 2).callback_metrics
    assert logged["votes/attackers"] == pytest.approx(2 / 6)


def test_honest_runs_have_no_attackers(ragged_data, fit):
    data = ragged_data()
    logged = fit(FedAvg(aggregator=Median()), data, 1).callback_metrics
    assert "attackers" not in data.eval_splits
    assert not [name for name in logged if "attackers" in name]
