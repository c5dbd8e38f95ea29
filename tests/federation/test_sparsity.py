"""Sparse models: the penalty, its gate, and the pruning of what is sent, for any method."""

from functools import partial
from math import ceil

import pytest
import torch
from fakes.cohorts import examples_of
from fakes.loops import cross_entropy, samples_of
from fakes.methods import built, distance, tensors
from fakes.tasks import ADAPTED
from methods.test_contract import KINDS
from torch.func import grad

from pfl_lightning import methods
from pfl_lightning.client import SmoothL1
from pfl_lightning.errors import PflError
from pfl_lightning.methods import (
    ClientLoop,
    FedAvg,
    FedBABU,
    FedBN,
    FedRep,
    LinearFedRep,
    Local,
    Method,
    Sparsity,
)
from pfl_lightning.models import VGG

OTHERS = (Method, ClientLoop, LinearFedRep, FedBN)
EVERY = [kind for kind in KINDS if kind not in OTHERS and kind.__name__ not in ADAPTED]
STEPS = {"epochs": 3, "epoch_steps": 1}


pytestmark = pytest.mark.usefixtures("float64")


def shared_model(*values):
    return {"fc.weight": torch.tensor([values[:-1]]), "fc.bias": torch.tensor(values[-1:])}


# The penalty and its gate


@pytest.mark.parametrize(
    ("values", "is_open"),
    [
        ((0.5, 0.5, 0.0, 0.0), False),  # a density of exactly 1/2
        ((0.5, 0.5, 0.1, 0.0), False),  # what lies at the threshold is zero
        ((0.5, 0.5, -0.11, 0.0), True),
        ((0.5, 0.0, 0.0, 0.0), False),
    ],
    ids=str,
)
def test_a_round_that_starts_at_or_below_the_lowest_density_has_no_penalty(values, is_open):
    sparsity = Sparsity(weight=0.3, smoothing=0.2, threshold=0.1, min_density=0.5)
    assert sparsity.penalty(shared_model(*values)) == (SmoothL1(0.3, 0.2) if is_open else None)


@pytest.mark.parametrize("options", [{"floor": "topk", "prune": True}, {"floor": "off"}], ids=str)
def test_without_a_gate_there_always_is_a_penalty(options):
    assert Sparsity(weight=0.3, **options).penalty(shared_model(0.0, 0.0)) == SmoothL1(0.3, 0.01)


def test_the_gate_looks_at_what_is_shared(ragged_data):
    # under FedRep the server's head never moves; Local shares nothing
    for make, is_open in ((FedRep, False), (FedAvg, True), (Local, True)):
        method = built(make, ragged_data(), sparsity=Sparsity(weight=0.3, min_density=0.001), hidden=(2,))
        for name in method.parts["body"]:
            method.network.get_parameter(name).data.zero_()
        assert (method.phase("all", 1).penalty is not None) == is_open


# Pruning


HALF = {"floor": "topk", "min_density": 0.5}


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        # entries up to the threshold become zero
        ({}, [[0.2, -0.1, 0.1, -0.3], [0.05, 0.0, 0.11, 1.0]], [[0.2, 0, 0, -0.3], [0, 0, 0.11, 1]]),
        # of equal entries all are kept rather than too few
        (HALF, [[0.01, -0.01, 0.01, 0.001], [0.0, 0.0, 0.0, 0.01]], [[0.01, -0.01, 0.01, 0], [0, 0, 0, 0.01]]),
    ],
)
def test_entries_are_pruned_up_to_the_threshold_or_but_for_the_largest(options, before, after):
    models = {"w": torch.tensor(before)}
    assert Sparsity(prune=True, threshold=0.1, **options).pruning.pruned(models)["w"].tolist() == after
    assert models["w"].tolist() == before, "the argument stays as it is"


def test_a_diverged_model_stays_diverged():
    pruned = Sparsity(prune=True).pruning.pruned({"w": torch.tensor([[torch.nan, 0.0, -torch.inf]])})["w"]
    assert pruned.isnan().tolist() == [[True, False, False]]
    assert pruned[0, 2] == -torch.inf


@pytest.mark.parametrize("min_density", [0.05, 0.3, 0.5, 1.0])
def test_the_largest_entries_of_each_model_are_kept_and_no_others_below_the_threshold(min_density):
    models = {"a": torch.randn(4, 3, 5), "b": torch.randn(4, 8)}
    scales = torch.tensor([1e-3, 0.1, 1.0, 10.0])
    models = {name: stack * scales.view(4, *[1] * (stack.ndim - 1)) for name, stack in models.items()}
    pruned = Sparsity(prune=True, threshold=0.1, min_density=min_density, floor="topk").pruning.pruned(models)
    least = ceil(min_density * 23)
    for client in range(4):
        before, after = (torch.cat([t["a"][client].flatten(), t["b"][client]]) for t in (models, pruned))
        order = before.abs().argsort(descending=True)
        kept = max(least, int((before.abs() > 0.1).sum()))
        assert torch.equal(after[order[:kept]], before[order[:kept]])
        assert not after[order[kept:]].any()


def test_a_share_that_is_not_exact_in_binary_keeps_as_many_entries_as_it_says():
    sparsity = Sparsity(prune=True, threshold=1e9, min_density=0.55, floor="topk")
    assert sparsity.pruning.pruned({"w": torch.rand(1, 100)})["w"].count_nonzero() == 55


def test_the_largest_entries_can_only_be_kept_where_others_are_pruned():
    line = "^model.sparsity.floor: topk is not possible without pruning; allowed: gate, off$"
    with pytest.raises(PflError, match=line):
        Sparsity(floor="topk")


def test_what_no_client_trains_is_not_pruned(ragged_data, train):
    options = {"hidden": (40, 5), "sparsity": Sparsity(prune=True, threshold=0.1)}
    start, method = (
        tensors(each.network) for each in (built(FedBABU, ragged_data(), **options), train(FedBABU, 1, **options))
    )
    head = {name: method[name] for name in ("fc3.weight", "fc3.bias")}
    assert all((tensor.abs() < 0.1).any() for tensor in head.values())
    assert distance(head, start) == 0


@pytest.mark.parametrize("num_clients", [1, 6])
def test_uploads_and_the_shared_model_are_pruned_and_this_is_what_clients_receive_next(num_clients, ragged_data, fit):
    method = built(FedAvg, ragged_data(), eval_epochs=0, sparsity=Sparsity(prune=True, threshold=0.05))
    uploads, received, step, receive = [], [], method.server_update, method.received
    method.server_update = lambda mean, batch: uploads.append(mean) or step(mean, batch)
    method.received = lambda ids: (
        received.append({n: t.clone() for n, t in receive(ids).shared.items()}) or receive(ids)
    )
    fit(method, ragged_data(num_clients=num_clients), 2, bare=True)
    final = dict(method.network.named_parameters())
    whole_uploads = uploads if num_clients == 1 else []  # the mean of several has small entries
    for tree in (*whole_uploads, *received[1:], final):
        entries = torch.cat([tree[name].detach().flatten() for name in final]).abs()
        assert not ((entries > 0) & (entries <= 0.05)).any()
        assert 0.1 < (entries > 0).double().mean() < 0.9
    first = torch.cat([received[0][name].flatten() for name in final]).abs()
    assert ((first > 0) & (first <= 0.05)).any(), "the first model is not pruned"


def test_batch_norm_statistics_are_never_pruned(train):
    network = partial(VGG, convolutions=(3, "M", 4, "M"), hidden=(6, 5), dropout=0.0, batch_norm=True)
    dense, pruned = (
        train(FedAvg, 1, network=network, lr=0.01, sparsity=Sparsity(prune=prune, threshold=0.2)).network
        for prune in (False, True)
    )
    statistics = dict(pruned.named_buffers())
    small = torch.cat([tensor for name, tensor in statistics.items() if "mean" in name]).abs()
    assert ((small > 0) & (small <= 0.2)).any()
    assert distance(statistics, dense) == 0, "clients start from the same model in the first round"
    assert distance(pruned, dense) > 0


# Any method


@pytest.mark.slow
@pytest.mark.parametrize("make", EVERY)
def test_every_method_becomes_sparser(make, ragged_data, train):
    def size(weight):
        data = ragged_data()
        method = train(make, 2, data, sparsity=Sparsity(weight, floor="off"), **STEPS)
        evaluated = dict(method.evaluate(data.make_eval_batch(data.evaluation_order[:6]).train, (0,)))
        params = evaluated[method.eval_models[0]].tree
        return sum(params[name].abs().sum().item() for name in method.engine.trainable)

    assert size(weight=0.2) < size(weight=0.0)


def test_without_a_weight_it_is_the_dense_method(train):
    dense = train(FedAvg, 2, sparsity=Sparsity(weight=0, smoothing=0.3, threshold=0.5, min_density=0.9, floor="off"))
    assert distance(train(FedAvg, 2), dense) == 0


# Where the penalty applies


def slope(tensor):
    return 0.3 * torch.tanh(tensor / 0.1)


def local_work(make, data, **options):
    """Clients that see all of their samples in every batch: their start, gradients of their losses, and their work."""
    sparsity = Sparsity(weight=0.3, smoothing=0.1)
    method = built(partial(make, sparsity=sparsity, **options), data, batch_size=20, epochs=2)
    examples = examples_of(counts=(7, 3))
    start = {name: tensor.detach() for name, tensor in method.network.named_parameters()}

    def gradient_of(client):
        samples = samples_of(examples.rows(client, client + 1))
        return grad(lambda tensors: cross_entropy(method.network, tensors, *samples))

    trained, _ = method.local_update(examples, method.received(examples.ids), (1, "train", 0))
    return start, [gradient_of(client) for client in (0, 1)], trained


def penalised(gradient, tensors):
    return {name: slopes + slope(tensors[name]) for name, slopes in gradient(tensors).items()}


def stepped(tensors, rate, along):
    return {name: tensor - rate * along[name] for name, tensor in tensors.items()}


def assert_near(found, expected, start):
    for name, tensor in expected.items():
        update = (tensor - start[name]).abs().max()
        assert update > 1e-3
        assert (found[name] - tensor).abs().max() < 1e-6 * update


def test_it_applies_to_the_inner_and_the_outer_gradient_of_per_fedavg(ragged_data):
    start, gradients, trained = local_work(methods.PerFedAvg, ragged_data(), inner_lr=0.2)
    for client, gradient in enumerate(gradients):
        w = start
        for _ in range(2):
            adapted = stepped(w, 0.2, penalised(gradient, w))
            w = stepped(w, 0.1, penalised(gradient, adapted))
        assert_near(trained.client(client), w, start)


def test_it_applies_to_every_gradient_of_the_hessian_free_variant(ragged_data):
    start, gradients, trained = local_work(methods.HFMAML, ragged_data(), inner_lr=0.2, difference=1e-4)
    for client, gradient in enumerate(gradients):
        w = start
        for _ in range(2):
            v = penalised(gradient, stepped(w, 0.2, penalised(gradient, w)))
            ahead, behind = (penalised(gradient, stepped(w, rate, v)) for rate in (-1e-4, 1e-4))
            w = stepped(w, 0.1, {name: v[name] - 0.2 * (ahead[name] - behind[name]) / 2e-4 for name in w})
        assert_near(trained.client(client), w, start)


def test_it_applies_to_the_personal_model_of_pfedme_and_not_to_the_copy(ragged_data):
    start, gradients, trained = local_work(methods.PFedMe, ragged_data(), proximity=2.0, copy_lr=0.25)
    for client, gradient in enumerate(gradients):
        theta = w = start
        for _ in range(2):
            pulled = {name: slopes + 2 * (theta[name] - w[name]) for name, slopes in penalised(gradient, theta).items()}
            theta = stepped(theta, 0.1, pulled)
            w = {name: tensor - 0.25 * 2 * (tensor - theta[name]) for name, tensor in w.items()}
        assert_near(trained.under("personal").client(client), theta, start)
        assert_near(trained.client(client), w, start)
