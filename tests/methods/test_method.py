"""The seams of the base, each proved by a method of a few lines."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes.methods import built

from pfl_lightning.client import largest_first
from pfl_lightning.data import Digits
from pfl_lightning.methods import DPSGD, FedAvg, FedRep, Method, load_method
from pfl_lightning.models import MLP
from pfl_lightning.seeding import seed_of
from pfl_lightning.system import Participation


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


class WorstHalf(Method):
    """Only the clients with the larger losses train."""

    def select_clients(self, batch):
        parts = self.cohort.map(
            lambda start, cohort: self.engine.score(cohort, self.received(cohort.ids))[1], batch.examples
        )
        losses = torch.cat(list(parts)) / batch.examples.device_counts
        return batch.take(losses >= losses.median())


def test_who_trains_can_be_chosen_by_losses(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    data.setup()
    method = built(WorstHalf, data)
    batch = method.select_clients(data.make_round(0))
    assert 0 < len(batch.examples) < data.num_clients
    assert len(batch.times) == len(batch.examples)
    assert batch.examples.is_largest_first
    torch.testing.assert_close(batch.weights, batch.examples.counts / batch.examples.counts.sum())
    method.network.train()  # as Lightning wants it
    fit(method, data, 1)
    # the same clients in a round of FedAvg
    reference = built(FedAvg, data)
    expected = reference.cohort.train(reference, batch).mean
    for name, tensor in method.network.state_dict().items():
        torch.testing.assert_close(tensor, expected[name])
    assert method.trainer.callback_metrics["system/cohort"] == len(batch.examples)


class Gossip(Method):
    """Every client has a model of its own, and mixes it with those of the others behind each round."""

    keeps = "all"
    finetunes = "nothing"

    def mixing(self, clients):
        return torch.full((clients, clients), 1 / clients)

    def server_update(self, mean, batch):
        names = self.parts["all"]
        self.clients.mix(self.mixing(self.built_for["num_clients"]), names)
        super().server_update(self.clients.mean(names), batch)


class Ring(Gossip):
    """On a ring."""

    def mixing(self, clients):
        eye = torch.eye(clients)
        return (eye + eye.roll(1, 0) + eye.roll(-1, 0)) / 3


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_gossip_on_the_complete_graph_is_the_uniform_mean_of_a_server(chunk_size, ragged_data, fit):
    server, gossip = (
        built(FedAvg, ragged_data(), weighting="uniform"),
        built(Gossip, ragged_data(), chunk_size=chunk_size),
    )
    for number, method in enumerate((server, gossip)):
        fit(method, ragged_data(), 3, str(number))
    for name, tensor in server.network.state_dict().items():
        torch.testing.assert_close(gossip.network.state_dict()[name], tensor, atol=1e-12, rtol=0)
        rows = gossip.clients.stack(name)
        torch.testing.assert_close(rows, tensor.expand_as(rows), atol=1e-12, rtol=0)


def test_gossip_on_a_ring_keeps_models_apart_and_does_not_depend_on_the_chunk(ragged_data, fit):
    states = []
    for chunk_size in (None, 2):
        method = built(Ring, ragged_data(), chunk_size=chunk_size)
        fit(method, ragged_data(), 2, str(chunk_size))
        states.append(method.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], atol=1e-12, rtol=0)
    rows = method.clients.stack("fc1.weight")
    assert (rows[0] - rows[3]).abs().max() > 1e-4


class OwnHeads(FedRep):
    """Every client begins with a head of its own."""

    def initial_state(self, tensors, num_clients, seed):
        source = torch.Generator().manual_seed(seed_of(seed, "heads"))
        kept = super().initial_state(tensors, num_clients, seed)
        return {name: torch.randn(stack.shape, generator=source) for name, stack in kept.items()}


def test_what_clients_keep_at_first_can_be_anything_also_for_new_clients(fit):
    torch.set_default_dtype(torch.float32)
    method = OwnHeads(network=partial(MLP, hidden=(8,)), head_epochs=1, eval_epochs=0)
    trainer = fit(method, Digits(num_clients=5, participation=Participation(pool_size=1), seed=3), 1)
    tensors = method.network.state_dict()
    expected = method.initial_state(tensors, 5, 3)["fc2.weight"]
    assert not torch.equal(expected[0], expected[1])
    untouched = [client for client in range(5) if client not in trainer.datamodule.make_round(0).examples.ids]
    assert torch.equal(method.clients.stack("fc2.weight")[untouched], expected[untouched])
    trainer.test(method, Digits(num_clients=5, new_clients=4, new_head_epochs=0, seed=3))
    new = method.clients.stack("fc2.weight")
    assert torch.equal(new, method.initial_state(tensors, 4, seed_of(3, "new clients"))["fc2.weight"])
    assert not torch.equal(new[0], expected[0])


def test_the_rate_of_a_round_is_a_function_of_the_round(ragged_data):
    method = built(partial(FedRep, head_lr=0.4), ragged_data(), lr_decay=0.5, lr_decay_every=2)
    rates = []
    for done in range(5):
        method.accounting.clock.rounds = done
        rates.append((method.phase("body", 1).lr, method.phase("head", 1, method.head_lr).lr))
    assert rates == [(0.1, 0.4), (0.1, 0.4), (0.05, 0.2), (0.05, 0.2), (0.025, 0.1)]
    assert method.finetuning.lr == 0.1, "fine-tuning is as good late as early"


def test_a_decaying_rate_is_the_rate_of_a_run_that_changes_it(ragged_data, fit, tmp_path):
    decaying = built(FedAvg, ragged_data(), lr_decay=0.25, lr_decay_every=2)
    fit(decaying, ragged_data(), 4, "decaying")
    fit(built(FedAvg, ragged_data()), ragged_data(), 2, "changed")
    changed = built(FedAvg, ragged_data())
    changed.local_sgd = replace(changed.local_sgd, lr=0.025)
    fit(changed, ragged_data(), 4, "changed", tmp_path / "changed/checkpoints/last.ckpt")
    for name, tensor in decaying.network.state_dict().items():
        assert torch.equal(tensor, changed.network.state_dict()[name])


def test_local_steps_can_be_counted_instead_of_epochs(ragged_data):
    method = built(FedAvg, ragged_data(), epochs=20, epoch_steps=1)
    assert (method.phase("all", method.epochs).epochs, method.phase("all", 1).steps) == (20, 1)
    assert replace(method.finetuning, trainable=frozenset("w")).steps is None, "fine-tuning passes over all samples"


def test_every_local_setting_reaches_the_phase(ragged_data):
    options = {"momentum": 0.3, "weight_decay": 0.2, "decay_biases": True, "clip_norm": 7.0, "epoch_steps": 3}
    phase = built(FedAvg, ragged_data(), **options).phase("head", 2)
    assert {name: getattr(phase, name) for name in ("momentum", "weight_decay", "decay_biases", "clip_norm")} == {
        name: value for name, value in options.items() if name != "epoch_steps"
    }
    assert (phase.steps, phase.epochs, phase.batch_size) == (3, 2, 4)


class FiveHeadEpochs(FedRep):
    """A subclass that sets an argument of its parent."""

    def __init__(self, twist: float = 1.0, **kwargs):
        super().__init__(head_epochs=5, **kwargs)
        self.twist = twist


def test_a_subclass_that_sets_its_parents_argument_can_be_loaded(ragged_data, fit, tmp_path):
    method = FiveHeadEpochs(twist=3.0, network=partial(MLP, hidden=(8, 5)), lr=0.2)
    fit(method, ragged_data(), 1)
    loaded = load_method(tmp_path / "run/checkpoints/last.ckpt", network=partial(MLP, hidden=(8, 5)))
    assert (type(loaded), loaded.head_epochs, loaded.twist, loaded.local_sgd.lr) == (FiveHeadEpochs, 5, 3.0, 0.2)
    assert loaded.eval_models == method.eval_models


def test_cohorts_train_largest_first(ragged_data):
    data = ragged_data()
    data.setup()
    examples = data.tables["train"].examples(torch.arange(6))
    assert not examples.is_largest_first
    assert data.tables["train"].examples(largest_first(examples.counts)).is_largest_first
    method = built(FedAvg, data)
    with pytest.raises(AssertionError, match="largest_first"):
        method.local_update(examples, method.received(examples.ids), (1,))


@pytest.mark.parametrize("make", [FedAvg, DPSGD])
def test_the_clock_waits_for_lost_uploads_and_at_most_until_the_deadline(make, ragged_data, fit):
    def clock(folder, **options):
        method = built(make, ragged_data())
        fit(method, ragged_data(participation=Participation(**options), communication_time=2.0), 3, folder)
        return method.accounting.clock

    usual, slowest = clock("usual"), ragged_data().speeds.times(0, 6).max()
    assert clock("dropout", dropout=0.5) == usual
    assert clock("late", deadline=slowest) == usual
    for deadline in (slowest / 2, slowest / 1000):
        capped = clock(f"{deadline}", deadline=deadline)
        assert capped.compute == pytest.approx(3 * deadline)
        assert capped.total == pytest.approx(3 * (deadline + 2))


def test_a_lost_upload_costs_the_download_alone(ragged_data, fit):
    method = built(FedAvg, ragged_data())
    trainer = fit(method, ragged_data(participation=Participation(dropout=0.5)), 1)
    dropped, bits = trainer.callback_metrics["system/dropped"], 64 * sum(p.numel() for p in method.network.parameters())
    assert 0 < dropped < 6
    assert method.accounting.ledger.down == 6 * bits
    assert method.accounting.ledger.up == (6 - dropped) * (bits + 64)  # and the training loss
