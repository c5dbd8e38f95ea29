"""What a round communicates, counted by hand."""

import io
from functools import partial

import numpy as np
import pytest
import torch
from fakes.methods import built, distance, tensors
from fakes.networks import frozen_and_tied

from pfl_lightning import load_method
from pfl_lightning.callbacks import RunSummary
from pfl_lightning.federation import client_states
from pfl_lightning.federation.accounting import Accounting, Traffic, parameters_of
from pfl_lightning.methods import (
    APFL,
    DPSGD,
    HFMAML,
    IFCA,
    SCAFFOLD,
    DisPFL,
    FedAvg,
    FedEM,
    FedRep,
    HeurFedAMP,
    Local,
    Method,
    PerFedAvg,
    PFedMe,
    Sparsity,
)
from pfl_lightning.models import MLP, ResNet18
from pfl_lightning.server import Aggregator, DPAggregator, Message, SecureAggregator, unpack_tensors
from pfl_lightning.system import Participation

CLIENTS, WIDTH = 6, 32  # of the ragged data; bits of a number


@pytest.mark.slow
def test_new_clients_leave_the_privacy_budget_as_it_was(ragged_data):
    accounting = Accounting(DPAggregator(clip_norm=1.0, noise_multiplier=1.0))
    accounting.clock.rounds = 3
    for options in ({}, {"participation": Participation(pool_size=3)}):
        run, more = ragged_data(**options), ragged_data(new_clients=2, **options)
        assert accounting.budget(run) == accounting.budget(more)


class LargestTwo(Method):
    """Only the two largest clients train."""

    def select_clients(self, batch):
        return batch.take(torch.arange(len(batch.examples)) < 2)


class Ring(Method):
    """Clients send their models to two neighbours."""

    keeps = "all"

    def count_traffic(self, batch, up, down):
        up.add(self.clients.first(self.parts["all"]), 2 * len(batch.participants))


class LinearPull(Method):
    """Clients compute one gradient over all of their samples."""

    def local_update(self, cohort, received, key):
        gradient = self.engine.gradient(cohort, received, self.parts["all"])
        return received.with_own(gradient), torch.zeros(len(cohort))


def parameters(method, part="all"):
    return sum(tensor.numel() for name, tensor in method.network.named_parameters() if name in method.parts[part])


@pytest.mark.parametrize(
    ("make", "part", "senders", "receivers", "losses"),
    [
        (FedAvg, "all", CLIENTS, CLIENTS, 1),
        (FedRep, "body", CLIENTS, CLIENTS, 1),
        (LargestTwo, "all", 2, CLIENTS, 1),
        (Local, "nothing", CLIENTS, CLIENTS, 0),
        (Ring, "all", 2 * CLIENTS, 0, 0),
        (HeurFedAMP, "all", CLIENTS, CLIENTS, 0),
    ],
)
def test_a_round_sends_every_model_once_over_each_link(make, part, senders, receivers, losses, train):
    method = train(make, 2)
    size, ledger = parameters(method, part), method.accounting.ledger
    assert (ledger.up, ledger.down) == (WIDTH * senders * (size + losses), WIDTH * receivers * size)
    assert ledger.total == 2 * (ledger.up + ledger.down)
    assert ledger.entries == ledger.values == pytest.approx(size * (senders + receivers) / CLIENTS)
    logged = method.trainer.callback_metrics
    assert {name: logged[name] for name in ledger.scalars()} == ledger.scalars()


@pytest.mark.parametrize(("make", "size"), [(FedAvg, 6 * 6 + 6 + 6 + 6 * 3 + 3), (FedRep, 6 * 6 + 6 + 6)])
def test_frozen_parameters_are_not_sent_and_tied_ones_once(make, size, train):
    ledger = train(make, 2, network=frozen_and_tied).accounting.ledger
    assert (ledger.up, ledger.down) == (WIDTH * CLIENTS * (size + 1), WIDTH * CLIENTS * size), "with the loss"
    assert ledger.entries == 2 * size


@pytest.mark.parametrize(
    ("make", "models"), [(FedAvg, 1), (SCAFFOLD, 2), (partial(IFCA, groups=3), 3), (partial(FedEM, models=3), 3)]
)
def test_parameters_of_all_models_that_travel_are_counted(make, models, train):
    method = train(make, 1)
    assert method.accounting.ledger.entries == pytest.approx(2 * models * parameters(method))


def test_words_before_a_parameters_name_do_not_hide_it():
    tree = {
        name: torch.zeros(1) for name in ("fc.weight", "server.1.fc.weight", "server.weights", "my_fc.weight", "fc")
    }
    assert [*parameters_of(tree, {"fc.weight"})] == ["fc.weight", "server.1.fc.weight"]


@pytest.mark.parametrize("make", [FedAvg, HeurFedAMP])
def test_clients_that_sit_out_send_and_receive_nothing(make, ragged_data, train):
    method = train(make, 1, ragged_data(participation=Participation(4)))
    assert method.accounting.ledger.down == WIDTH * 4 * parameters(method)
    assert method.accounting.ledger.entries == 2 * parameters(method), "that is of one link"


@pytest.mark.parametrize(("make", "losses"), [(FedAvg, 1), (HeurFedAMP, 0)])
def test_a_client_whose_upload_is_dropped_has_received_its_model(make, losses, ragged_data, train):
    method = train(make, 1, ragged_data(participation=Participation(dropout=0.5)))
    dropped, size = int(method.trainer.callback_metrics["system/dropped"]), parameters(method)
    assert 0 < dropped < CLIENTS
    ledger = method.accounting.ledger
    assert (ledger.up, ledger.down) == (WIDTH * (CLIENTS - dropped) * (size + losses), WIDTH * CLIENTS * size)


def test_a_masked_upload_is_a_word_for_each_number_even_if_it_is_pruned(train):
    method = train(FedAvg, 1, aggregator=SecureAggregator(), sparsity=Sparsity(prune=True, threshold=1e9))
    size = parameters(method)
    assert method.accounting.ledger.up == 64 * CLIENTS * (size + 2), "with the loss and the weight"


@pytest.mark.parametrize("make", [DPSGD, DisPFL, HeurFedAMP])
def test_counting_what_is_sent_changes_no_row_of_a_client(make, ragged_data, fit, monkeypatch):
    monkeypatch.setattr(client_states, "LARGEST_AT_ONCE", 0)
    method = built(make, data := ragged_data(participation=Participation(dropout=1.0)))
    fit(method, data, 1, bare=True)  # it is skipped
    assert not method.clients.shard.own
    assert (
        method.accounting.ledger.total
        == method.accounting.ledger.down
        == 6 * WIDTH * parameters(method) * (make is HeurFedAMP)
    )


def test_statistics_are_sent_but_are_no_parameters():
    network = ResNet18((3, 32, 32), 10)
    names = {name for name, _ in network.named_parameters()}
    traffic = Traffic(Message(), names)
    traffic.add(network.state_dict(), 3)
    numbers = sum(parameter.numel() for parameter in network.parameters())
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    assert traffic.volume == (3 * size, 3 * numbers, 3 * numbers)


def test_no_number_is_read_unless_models_are_pruned():
    model = {"fc.weight": torch.empty(5, device="meta")}
    static = Traffic(Message(), {"fc.weight"})
    static.add(model, 5)
    assert static.volume == (5 * 5 * WIDTH // 8, 5 * 5, 5 * 5)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        Traffic(Message(packed=True), {"fc.weight"}).add(model, 1)


def packed_bits(tree):
    sizes = [(tensor.numel(), int(tensor.count_nonzero())) for tensor in tree.values()]
    return sum(min(WIDTH * entries, 8 * -(-entries // 8) + WIDTH * values) for entries, values in sizes)


def test_pruned_models_are_measured_as_they_are_sent(ragged_data, fit):
    def run(rounds):
        data = ragged_data(participation=Participation(1))
        method = built(FedAvg, data, sparsity=Sparsity(prune=True, threshold=0.05))
        start = tensors(method.network)
        fit(method, data, rounds, bare=True)
        return start, method.network.state_dict(), method.accounting.ledger

    # with one participant, its upload is the next shared model
    (start, first, one), (_, second, two) = run(1), run(2)
    assert (one.down, two.down) == (packed_bits(start), packed_bits(first))
    assert (one.up, two.up) == (packed_bits(first) + WIDTH, packed_bits(second) + WIDTH)
    assert two.up < WIDTH * sum(tensor.numel() for tensor in first.values()) * 0.9
    last = [tensor for tree in (first, second) for tensor in tree.values()]
    assert two.entries == sum(tensor.numel() for tensor in last)
    assert two.values == sum(int(tensor.count_nonzero()) for tensor in last)


def test_the_ledger_does_not_depend_on_the_chunks(train):
    options = {"sparsity": Sparsity(prune=True, threshold=0.05), "backend": "sequential"}
    one, *others = (train(FedAvg, 1, chunk_size=size, **options).accounting.ledger for size in (None, 1, 4))
    assert others == [one, one]
    assert 0 < one.up < one.down


@pytest.mark.parametrize(
    ("make", "options", "passes"),
    [
        (FedAvg, {"epochs": 3}, 3),
        (FedRep, {"head_epochs": 4, "epochs": 2}, (4 + 1) * 2),
        (FedRep, {"head_epochs": 4, "body_epochs": 3, "epochs": 2}, (4 + 3) * 2),
        (PFedMe, {"inner_steps": 5, "epochs": 2}, 10),
        (PerFedAvg, {"epochs": 3}, 2 * 3),
        (HFMAML, {"epochs": 3}, 4 * 3),
        (APFL, {}, 2),
        (SCAFFOLD, {}, 1),
        (LinearPull, {}, 1),
    ],
)
def test_a_sample_counts_as_often_as_clients_take_its_gradient(make, options, passes, ragged_data, train):
    method = train(make, 2, data := ragged_data(), **options)
    assert method.accounting.ledger.samples == 2 * passes * int(data.tables["train"].counts.sum())


def test_batches_that_are_drawn_count_by_what_is_drawn(ragged_data, train):
    method = train(FedAvg, 1, data := ragged_data(), epochs=3, epoch_steps=1, batch_size=2)
    assert method.accounting.ledger.samples == 3 * int(data.tables["train"].counts.clamp(max=2).sum())


def test_what_is_saved_goes_on_as_it_was():
    one, other = (Accounting(Aggregator()) for _ in range(2))
    one.clock.advance(np.array([1.5, 0.5]), 2.0)
    one.clock.ready = {3: 1.5}
    one.ledger.record(8, 16, 0.5, 0.5, samples=7)
    one.aggregator.calls, one.aggregator.bytes = 2, 80
    other.load_state_dict(torch.load(saved(one.state_dict()), weights_only=True))
    assert (other.clock, other.ledger, other.scalars()) == (one.clock, one.ledger, one.scalars())
    assert other.ledger.total > 0


def saved(content):
    torch.save(content, file := io.BytesIO())
    file.seek(0)
    return file


def test_a_half_sparse_checkpoint_takes_little_more_than_half(ragged_data, fit, tmp_path):
    sparsity = Sparsity(prune=True, threshold=1e9, floor="topk")  # keeps half of the entries
    method = built(FedAvg, ragged_data(), hidden=(300,), sparsity=sparsity)
    fit(method, ragged_data(), 1)
    path = tmp_path / "run/checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["state_dict"] = unpack_tensors(checkpoint["state_dict"])
    torch.save(checkpoint, tmp_path / "dense.ckpt")
    packed, dense = path.stat().st_size, (tmp_path / "dense.ckpt").stat().st_size
    assert packed / dense == pytest.approx(1 / 2 + 1 / 32, abs=0.03)
    loaded = load_method(path, network=partial(MLP, hidden=(300,)))
    assert distance(method, loaded) == 0


class Told(DPAggregator):
    def spent(self, rounds, sample, clients):
        return {"privacy/epsilon": float(f"{rounds}{sample}{clients}")}


def test_a_run_logs_the_budget_of_its_rounds_and_says_it(ragged_data, fit, capsys):
    method = FedAvg(network=partial(MLP, hidden=(4,)), aggregator=Told(), weighting="uniform", eval_epochs=0)
    trainer = fit(method, ragged_data(participation=Participation(3)), 2, callbacks=[RunSummary()])
    assert trainer.callback_metrics["privacy/epsilon"] == 236  # rounds, clients drawn, clients
    assert "Privacy:        epsilon 236 at delta 1e-05, for each client\n" in capsys.readouterr().out
