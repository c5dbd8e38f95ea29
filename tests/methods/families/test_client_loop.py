import random
from functools import partial

import numpy as np
import pytest
import torch
from fakes.methods import PersonalSGD, PlainSGD, distance, make_method, rows, tensors
from fakes.networks import Normed, Plain
from torch.nn import functional as F
from torch.optim import SGD

from pfl_lightning.errors import PflError
from pfl_lightning.methods import ClientLoop, FedAvg, FedRep, Sparsity
from pfl_lightning.models import MLP
from pfl_lightning.system import Participation

SMALL = partial(MLP, hidden=(8, 5))


class Mirrored:
    """Turns a sample around for every other random integer."""

    random = True

    def __call__(self, raw, bits=None):
        return raw if bits is None else torch.where((bits % 2 == 0).view(-1, 1, 1, 1), raw, raw.flip(-1))


@pytest.fixture
def trained(ragged_data, fit):
    """Trains a method for some rounds; ``augmented``: on mirrored inputs."""

    def run(make, rounds=2, augmented=False, participation=None, **options):
        class Data(ragged_data):
            def transform(self):
                return Mirrored() if augmented else super().transform()

        method = make_method(make, **{"network": SMALL, "batch_size": 4, "lr": 0.1, **options})
        data = Data(participation=participation or Participation())
        return method, fit(method, data, rounds, bare=True)

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epochs": 3, "augmented": True, "weight_decay": 0.1, "lr_decay": 0.5},
        {"epochs": 2, "epoch_steps": 2, "augmented": True},
        {"network": Normed, "batch_size": 1000, "batch_norm": "local"},
    ],
    ids=["plain", "augmented", "steps", "own-module"],
)
def test_plain_sgd_in_a_loop_of_ones_own_is_fedavg(options, trained, float64, monkeypatch):
    monkeypatch.setattr(F, "dropout", lambda inputs, *_: inputs)
    (loop, looped), (fedavg, usual) = trained(PlainSGD, **options), trained(FedAvg, **options)
    start = trained(FedAvg, **{**options, "lr": 1e-12})[0]
    assert distance(start, fedavg) > 1e-3
    assert distance(loop, fedavg) < 1e-10
    assert float(looped.callback_metrics["train/loss"]) == pytest.approx(float(usual.callback_metrics["train/loss"]))
    assert loop.accounting.state_dict() == fedavg.accounting.state_dict(), "samples, bits and seconds are counted alike"


def test_fedrep_in_a_loop_of_ones_own_is_fedrep(trained, float64):
    class Loop(ClientLoop):
        keeps = "head"

        def client_update(self, model, loader):
            for part, epochs in (("head", 3), ("body", 1)):
                optimizer = SGD(self.parameters_of(model, part), lr=0.1)
                for _ in range(epochs):
                    for inputs, targets in loader:
                        optimizer.zero_grad()
                        F.cross_entropy(model(inputs), targets).backward()
                        optimizer.step()

    options = {"batch_size": 1000, "participation": Participation(pool_size=4)}  # all samples at once, in any order
    fedrep, _ = trained(FedRep, head_epochs=3, weight_decay=0.0, momentum=0.0, **options)
    loop, trainer = trained(Loop, **options)
    assert distance(loop, fedrep) < 1e-10
    assert distance(rows(loop), rows(fedrep)) < 1e-10
    assert loop.accounting.state_dict()["ledger"]["up"] == fedrep.accounting.state_dict()["ledger"]["up"]
    assert torch.isfinite(trainer.callback_metrics["train/loss"]), "without one of the loop's own"


def random_states():
    return repr((torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()))


def test_random_numbers_are_those_of_a_client_and_a_round_and_leave_no_trace(trained):
    drawn, inside = {}, set()

    class Noise(ClientLoop):
        def client_update(self, model, loader):
            noise = torch.rand(()) + np.random.rand() + random.random()
            model.fc1.weight.data += noise
            drawn[loader.client] = float(noise)
            inside.add(random_states())
            return 0.0

    runs = []
    for rounds, chunk_size in ((1, None), (1, 1), (2, None)):
        method, _ = trained(Noise, rounds, chunk_size=chunk_size)
        assert random_states() not in inside
        runs.append((method, dict(drawn)))
    (one, first), (other, again), (_, second) = runs
    assert first == again
    assert distance(one, other) < 1e-6
    assert len({*first.values(), *second.values()}) == 2 * 6


@pytest.mark.filterwarnings("error:Converting a tensor")
def test_the_loader_has_each_sample_once_an_epoch_in_a_new_order(trained):
    seen = {}

    class Reader(ClientLoop):
        def client_update(self, model, loader):
            epochs = [[inputs.flatten(1)[:, 0] for inputs, _ in loader] for _ in range(2)]
            assert [len(batches) for batches in epochs] == [len(loader)] * 2
            seen[loader.client] = [torch.cat(batches) for batches in epochs]
            return torch.tensor(0.0, requires_grad=True)

    trained(Reader, rounds=1)
    assert sorted(len(first) for first, _ in seen.values())[0] == 1, "a client has one sample alone"
    for first, second in seen.values():
        assert torch.equal(first.sort()[0], second.sort()[0])
        assert len({*first.tolist()}) == len(first)
        assert len(first) < 5 or not torch.equal(first, second)


def moved(one, other):
    """The tensors of a network that differ between two methods, with how much they do."""
    differences = {
        name: distance({"": tensor}, {"": tensors(other.network)[name]})
        for name, tensor in tensors(one.network).items()
    }
    return {name: difference for name, difference in differences.items() if difference > 1e-6}


def test_only_what_the_method_trains_can_change_and_is_sent(trained):
    class Body(PlainSGD):
        trains = "body"

    before, after, whole = trained(Body, 1)[0], trained(Body, 2)[0], trained(PlainSGD, 2)[0]
    assert moved(before, after).keys() == after.parts["body"]
    assert 0 < after.aggregator.bytes < whole.aggregator.bytes


def test_the_model_is_of_the_users_class_and_a_copy(trained):
    class Checked(ClientLoop):
        def client_update(self, model, loader):
            assert type(model) is Plain
            assert model.training
            model.fc1.requires_grad_(False)
            model.fc2.weight.data += 1.0
            assert all(parameter.requires_grad for parameter in self.network.parameters())
            return 0.0

    before, after = (trained(Checked, rounds, network=Plain)[0] for rounds in (1, 2))
    assert moved(before, after) == {"fc2.weight": pytest.approx(1.0, abs=1e-6)}


@pytest.mark.parametrize("returned", ["model", torch.ones(2)], ids=["text", "tensor"])
def test_another_return_than_a_loss_is_one_line(returned, trained):
    class Wrong(ClientLoop):
        def client_update(self, model, loader):
            return returned

    kind = type(returned).__name__
    with pytest.raises(PflError, match=f"^Wrong.client_update must return a loss or nothing, got {kind}$"):
        trained(Wrong, rounds=1)


def test_a_penalty_that_the_loop_would_leave_out_is_refused():
    with pytest.raises(PflError, match=r"^model\.sparsity\.weight must be 0 with PersonalSGD, got 0\.1$"):
        PersonalSGD(sparsity=Sparsity(weight=0.1))
