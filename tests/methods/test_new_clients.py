"""What clients get that are new to a finished run."""

from functools import partial

import pytest
import torch
from fakes.loops import cross_entropy, samples_of
from fakes.methods import Models, built, distance, make_method, normed, rows, tensors

from pfl_lightning import methods
from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, LogisticRegression, start_network
from pfl_lightning.seeding import seed_of
from pfl_lightning.system import Participation
from pfl_lightning.tasks import Classification

EPOCHS, LR, MOMENTUM, DECAY = 4, 0.05, 0.9, 0.01


def network_body(method):
    return method.network.state_dict()


def mean_rows(method, prefix=""):
    return {name: method.clients.stack(f"{prefix}{name}").double().mean(0) for name in method.parts["body"]}


def mean_of_holders(method):
    trainable = method.parts["body"] & method.engine.trainable
    masks = {name: method.clients.stack(f"mask.{name}") for name in trainable}
    sums = {name: method.clients.stack(name).sum(0) for name in trainable}
    return {name: sums[name] / masks[name].sum(0).clamp(min=1) for name in trainable}


def extended_body(method):
    own = {name: method.clients.stack(name).double().mean(0) for name in method.kept - method.parts["head"]}
    return {**network_body(method), **own}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (methods.FedAvg, network_body),
        (methods.FedCP, extended_body),
        (methods.GPFL, extended_body),
        (methods.PerFedAvg, network_body),
        (methods.FedRep, network_body),
        (methods.Ditto, partial(mean_rows, prefix="personal.")),
        (methods.DPSGD, mean_rows),
        (methods.DePRL, mean_rows),
        (partial(methods.DisPFL, drop_rounds=2), mean_of_holders),
        (methods.LGFedAvg, mean_rows),
        (methods.Local, mean_rows),
    ],
)
def test_the_common_body_is_the_servers_or_the_mean_of_the_clients_own(make, expected, ragged_data, train):
    start = built(make, ragged_data()).network.state_dict()["fc1.weight"]
    method = train(make, 2, ragged_data(participation=Participation(4)))
    body = method.common_body()
    assert body.keys() == method.parts["body"]
    assert not torch.allclose(body["fc1.weight"], start)
    assert distance(body, expected(method)) < 1e-6


def test_statistics_that_stay_with_the_clients_count_with_their_mean():
    method = methods.FedAvg(network=normed, batch_norm="local")
    method.build((5,), Classification().sized(3), 6)
    statistics = method.clients.stack("norm.running_mean").normal_()
    body = method.common_body()
    assert torch.equal(body["fc.weight"], method.network.state_dict()["fc.weight"])
    torch.testing.assert_close(body["norm.running_mean"], statistics.mean(0))


@pytest.mark.parametrize(
    ("make", "lr", "length"),
    [
        (methods.FedAvg, LR, {"new_head_epochs": EPOCHS}),
        (methods.Ditto, LR, {"new_head_epochs": EPOCHS}),
        (methods.DePRL, LR, {"new_head_epochs": EPOCHS}),
        (partial(methods.DePRL, head_lr=LR), 2 * LR, {"new_head_epochs": EPOCHS}),
        (partial(methods.DePRL, head_lr=LR), 2 * LR, {"new_head_steps": EPOCHS}),  # which are the same in full batches
    ],
)
def test_a_new_client_trains_a_new_head_on_the_frozen_body(make, lr, length, float64, ragged_data, fit):
    network = partial(MLP, hidden=(8, 5))
    method = make_method(
        make, network=network, lr=lr, lr_decay=0.5, momentum=MOMENTUM, weight_decay=DECAY, batch_size=100
    )
    trainer = fit(method, ragged_data(), 2, bare=True)
    body, data = method.common_body(), ragged_data(new_clients=3, seed=5, val_fraction=0.0, **length)
    method.evaluator.measures["finetuned/models"] = evaluated = Models()
    trainer.test(method, data, verbose=False)
    assert method.evaluated_models == ("finetuned", *(() if isinstance(method, methods.DePRL) else ("global",)))
    fresh = start_network(network, data.input_shape, data.num_classes, seed_of(5, "new clients"), {})
    assert not torch.allclose(fresh.fc3.weight, method.network.fc3.weight)
    for client in range(3):
        own = data.tables["train"].examples(torch.tensor([client]))
        model = start_network(network, data.input_shape, data.num_classes, seed_of(5, "new clients"), {})
        model.load_state_dict({**model.state_dict(), **body})
        groups = [{"params": [model.fc3.weight], "weight_decay": DECAY}, {"params": [model.fc3.bias]}]
        optimizer = torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM)
        for _ in range(EPOCHS):  # every batch holds all samples
            optimizer.zero_grad()
            cross_entropy(model, dict(model.named_parameters()), *samples_of(own)).backward()
            optimizer.step()
        assert distance(model, evaluated.found[client]) < 1e-12


def test_a_new_head_takes_as_many_steps_as_asked_for_however_many_samples_there_are(ragged_data, fit, monkeypatch):
    phases = []
    method = make_method(methods.DePRL, network=partial(MLP, hidden=(5,)), batch_size=2, epoch_steps=7)
    trainer = fit(method, ragged_data(), 1, bare=True)
    train = method.engine.train
    monkeypatch.setattr(method.engine, "train", lambda *words: phases.append(words[2]) or train(*words))
    trainer.test(method, ragged_data(new_clients=3, new_head_steps=4), verbose=False)
    trainer.test(method, ragged_data(new_clients=3), verbose=False)
    steps, epochs = phases[0], phases[-1]
    assert steps.steps_of(torch.tensor([2, 50])).tolist() == [4, 4]
    assert epochs.steps_of(torch.tensor([2, 50])).tolist() == [10, 250]


def test_a_new_head_is_trained_for_epochs_or_for_steps(ragged_data):
    line = r"^data\.new_head_steps: 4 is not possible with data\.new_head_epochs 3; allowed: one of the two$"
    with pytest.raises(PflError, match=line):
        ragged_data(new_clients=3, new_head_steps=4, new_head_epochs=3)


@pytest.mark.parametrize(
    ("make", "prefix"),
    [
        (methods.Ditto, "personal."),
        (methods.HeurFedAMP, ""),
        (methods.HeurFedAMP, "cloud."),
        (methods.FedRoD, "personal."),
    ],
)
def test_new_clients_that_train_no_head_begin_with_the_servers_model(make, prefix, ragged_data, train):
    method = train(make, 2)
    trained = tensors(method.network)
    method.trainer.test(method, ragged_data(new_clients=4, new_head_epochs=0), verbose=False)
    found = rows(method, prefix)
    expected = {name: trained[name].expand(4, *trained[name].shape) for name in found.keys() & trained.keys()}
    assert expected
    if make is methods.FedRoD:  # what a client adds to the common head
        assert not any(stack.any() for stack in found.values())
    else:
        assert distance(expected, found) == 0


def test_new_clients_have_the_runs_type_of_numbers(ragged_data, fit):
    method = built(methods.PFedHN, ragged_data())
    trainer = fit(method, ragged_data(), 1, bare=True, precision="64-true")
    trainer.test(method, ragged_data(new_clients=4, new_head_epochs=0), verbose=False)
    assert rows(method)["embedding"].dtype == torch.float64


@pytest.mark.parametrize("make", [methods.Ditto, methods.FedCP, methods.FedDBE, methods.GPFL])
def test_a_test_of_new_clients_leaves_the_method_as_it_was(make, ragged_data, train):
    method = train(make, 2)

    def scores(**options):
        return method.trainer.test(method, ragged_data(**options), verbose=False)[0]

    usual, new = scores(), scores(new_clients=3)
    assert scores(new_clients=3) == new
    assert scores() == usual
    models = {name.split("/")[1] for name in usual if name.startswith("test")} - {"accuracy"}
    assert models == ({"personal", "global"} if make is methods.Ditto else {"stored"})


def test_a_network_without_a_body_is_refused(ragged_data):
    data = ragged_data(new_clients=3)
    data.setup("test")
    line = r"^data\.new_head_epochs: 10 is not possible with LogisticRegression, .* no body; allowed: 0$"
    with pytest.raises(PflError, match=line):
        methods.FedAvg(network=LogisticRegression).build_for(data)
