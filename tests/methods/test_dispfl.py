"""DisPFL: sparse models without a server."""

from functools import partial
from math import ceil, cos, pi

import pytest
import torch
from fakes.loops import cross_entropy, participants, samples_of
from fakes.methods import built, distance, row, rows
from torch.func import grad

from pfl_lightning.methods import DPSGD, DisPFL
from pfl_lightning.models import VGG
from pfl_lightning.server import Complete, ErdosRenyi, Ring
from pfl_lightning.system import Participation
from pfl_lightning.tree import select

WIDTH = 32  # bits of a number


# The rule


def search(weights, mask, gradient, ratio):
    """The mask of one tensor of one client after the search, by sorting; dead units have equal gradients."""
    weights, mask, gradient = weights.flatten(), mask.flatten().clone(), gradient.flatten()
    held = mask.nonzero().flatten()
    count = ceil(ratio * len(held))
    mask[held[weights[held].abs().argsort(descending=True, stable=True)[len(held) - count :]]] = False
    free = (~mask).nonzero().flatten()
    mask[free[gradient[free].abs().argsort(descending=True, stable=True)[:count]]] = True
    return mask


def plain_round(models, masks, slope, ratio, lr, decay, momentum, epochs):
    """One round on a ring, client by client; every client sees all of its samples in each batch."""
    clients = len(models)
    for client in range(clients):
        w, m = models[client], masks[client]
        dense = slope(client, w)
        m = masks[client] = {n: search(w[n], m[n], dense[n], ratio).view_as(w[n]) for n in w}
        w, speed = {n: w[n] * m[n] for n in w}, {n: torch.zeros_like(w[n]) for n in w}
        for _ in range(epochs):
            gradient = slope(client, w)
            for n in w:
                speed[n] = momentum * speed[n] + gradient[n] + (decay * w[n] if w[n].ndim > 1 else 0)
            w = {n: (w[n] - lr * speed[n]) * m[n] for n in w}
        models[client] = w
    mixed = []
    for client in range(clients):
        near = [client - 1, client, (client + 1) % clients]
        total = {n: sum(models[j][n] for j in near) for n in models[client]}
        holders = {n: sum(masks[j][n].int() for j in near) for n in total}
        mixed.append({n: masks[client][n] * total[n] / holders[n].clamp(min=1) for n in total})
    return mixed, masks


@pytest.mark.parametrize("layers", ["erk", "uniform"])
def test_rounds_on_a_ring_are_those_of_a_plain_loop(layers, float64, ragged_data, fit):
    data = ragged_data(num_clients=5)
    options = {"epochs": 2, "batch_size": 100, "momentum": 0.5, "weight_decay": 0.01, "eval_epochs": 0}
    method = built(DisPFL, data, topology=Ring(), drop=0.8, drop_rounds=3, layers=layers, density=0.4, **options)
    names = sorted(method.engine.trainable)
    start = rows(method)
    models = [{n: start[n][client] for n in names} for client in range(5)]
    masks = [{n: start[f"mask.{n}"][client] for n in names} for client in range(5)]
    fit(method, data, 5, bare=True)

    samples = {client: samples_of(own) for client, own in participants(data, 0)}

    def slope(client, w):
        return grad(partial(cross_entropy, method.network))(w, *samples[client])

    for index in range(5):
        ratio = 0.8 / 2 * (1 + cos(pi * min(index, 3) / 3))  # masks come to rest
        models, masks = plain_round(models, masks, slope, ratio, 0.1, 0.01, 0.5, epochs=2)
    after = rows(method)
    for client in range(5):
        assert distance(masks[client], row(method, client, "mask.")) == 0
        assert distance(models[client], row(method, client)) < 1e-13
    changed = torch.stack([(after[f"mask.{n}"] != start[f"mask.{n}"]).double().mean() for n in names])
    moved = max((after[n] - start[n]).abs().max() for n in names)
    assert changed.max() > 0.1
    assert moved > 0.05


@pytest.mark.parametrize("mixing", ["metropolis", "uniform"])
def test_dense_models_that_are_never_pruned_are_those_of_dpsgd(mixing, float64, ragged_data, train):
    options = {"topology": ErdosRenyi(0.4), "mixing": mixing, "momentum": 0.5}
    dense, sparse = (
        train(make, 3, ragged_data(participation=Participation(pool_size=5)), **options)
        for make in (DPSGD, partial(DisPFL, density=1.0, drop=0.0))
    )
    assert distance(dense, sparse) < 1e-14, "the sum of a row of the matrix may differ from 1 in its last digit"


@pytest.mark.parametrize("regrow", ["gradient", "random"])
def test_every_model_keeps_the_density_of_each_tensor_and_is_zero_elsewhere(regrow, ragged_data, fit):
    method = built(DisPFL, ragged_data(), density=0.3, regrow=regrow, momentum=0.9)
    start = rows(method)
    fit(method, data := ragged_data(), 3, bare=True)
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    after, evaluated = rows(method), dict(method.evaluate(train, (0,)))
    assert set(evaluated) == {"finetuned", "stored"}
    for name in method.engine.trainable:
        mask = after[f"mask.{name}"]
        assert torch.equal(mask.flatten(1).sum(1), start[f"mask.{name}"].flatten(1).sum(1))
        for model in (start[name] * start[f"mask.{name}"] - start[name], after[name] * ~mask):
            assert not model.any()
        assert not any((params.tree[name] * ~mask[train.ids]).any() for params in evaluated.values())
    total = sum(after[f"mask.{name}"].sum() for name in method.engine.trainable)
    size = 6 * sum(tensor.numel() for tensor in method.network.parameters())
    assert 0.3 * size - 6 * len(start) <= total <= 0.3 * size


def test_regrowing_at_random_does_not_look_at_the_gradient_and_differs_in_each_round(ragged_data):
    method = built(DisPFL, data := ragged_data(), regrow="random", density=0.2)
    data.setup()
    method.engine.gradient = None
    examples, before = data.make_round(0).examples, rows(method, "mask.")["fc1.weight"]
    one, other = (method.local_update(examples, method.received(examples.ids), (1, "train", k))[0] for k in (0, 1))
    regrown = [after.own["mask.fc1.weight"] & ~before[examples.ids] for after in (one, other)]
    assert all(new.flatten(1).any(1).all() for new in regrown)
    assert not torch.equal(*regrown)


def test_the_sample_for_regrowth_is_as_large_as_an_epochs_and_another_in_each_round(ragged_data):
    method, seen = built(DisPFL, data := ragged_data(), epoch_steps=2, batch_size=3), []
    data.setup()
    method.engine.gradient = lambda few, start, names: seen.append(few) or select(start.own, names)
    examples = data.make_round(0).examples
    for index in (0, 1):
        method.local_update(examples, method.received(examples.ids), (1, "train", index))
    assert [int(few.counts.max()) for few in seen] == [6, 6]
    assert not torch.equal(*(few.index for few in seen))


# The network, and BatchNorm


def test_the_network_is_the_mean_over_the_participants_that_hold_a_weight(ragged_data, fit):
    data = ragged_data(participation=Participation(pool_size=3))
    method = built(DisPFL, data, density=0.2)
    fit(method, data, 1, bare=True)
    ids, after = data.make_round(0).examples.ids, rows(method)
    for name, parameter in method.network.named_parameters():
        holders = after[f"mask.{name}"][ids].sum(0)
        expected = after[name][ids].sum(0) / holders.clamp(min=1)
        torch.testing.assert_close(parameter.detach(), expected)
    assert (after["mask.fc1.weight"][ids].sum(0) == 0).any(), "there are weights that nobody holds"


def test_new_clients_begin_with_the_network_under_masks_of_their_own(ragged_data, train):
    method = train(DisPFL, 1)
    method.trainer.test(method, ragged_data(new_clients=4, new_head_epochs=0), verbose=False)
    masks, models = rows(method, "mask."), rows(method)
    for name, parameter in method.network.named_parameters():
        assert torch.equal(models[name], parameter.detach() * masks[name])
    mask = masks["fc1.weight"]
    assert len(mask) == 4
    assert not torch.equal(mask[0], mask[1])
    assert not torch.equal(mask, rows(built(DisPFL, ragged_data()), "mask.")["fc1.weight"][:4])


def test_batch_norm_statistics_are_mixed_by_all_neighbours(ragged_data):
    network = partial(VGG, convolutions=(3, "M"), hidden=(5,), dropout=0.0, batch_norm=True)
    method = DisPFL(network=network, density=0.3)
    data = ragged_data(num_clients=4)
    method.build(data.input_shape, data.task, 4)
    means = [name for name, _ in method.network.named_buffers() if name.endswith("running_mean")]
    matrix = torch.rand(4, 4, dtype=torch.float64)
    for name in means:
        method.clients.stack(name).normal_()
    before = rows(method)
    method.mix_clients(matrix, None)
    assert means
    for name in means:
        torch.testing.assert_close(method.clients.stack(name), matrix.float() @ before[name])
    assert {name.removeprefix("mask.") for name in before if "mask." in name} == method.engine.trainable


# What is sent


@pytest.mark.parametrize("topology", [Ring(), Complete()])
def test_a_client_sends_the_weights_that_it_holds_and_a_bit_for_each_weight(topology, train):
    sparse, dense = (train(make, 2, hidden=(40, 5), topology=topology) for make in (DisPFL, DPSGD))
    links, bits = 6 * (2 if isinstance(topology, Ring) else 5), 0
    for name, parameter in sparse.network.named_parameters():
        entries, ones = parameter.numel(), int(sparse.clients.stack(f"mask.{name}")[0].sum())
        bits += min(WIDTH * entries, 8 * ceil(entries / 8) + WIDTH * ones)
    ledger, whole = sparse.accounting.ledger, dense.accounting.ledger
    assert (ledger.up, ledger.down, ledger.total) == (links * bits, 0, 2 * links * bits)
    assert 0.5 < ledger.up / whole.up < 0.6
    assert ledger.entries == whole.entries
