from functools import partial

import pytest
import torch
from fakes.loops import participants, trained
from fakes.methods import built, distance, rows, tensors
from torch import nn

from pfl_lightning.methods import FedAvg, PFedHN
from pfl_lightning.models import MLP

pytestmark = pytest.mark.usefixtures("float64")


def test_four_rounds_of_half_of_the_clients_are_a_plain_loop(pool_of, fit):
    data = pool_of(3)
    method = built(partial(PFedHN, hyper_lr=0.5, width=7, layers=2, embedding=3), data, epochs=2, weight_decay=0.0)
    trunk = MLP((3,), 7, (7, 7))
    trunk.load_state_dict({name: method.server.tree[f"trunk.{name}"] for name in trunk.state_dict()})
    biases = {name: nn.Parameter(tensor) for name, tensor in tensors(method.network).items()}
    heads = {name: torch.zeros(*tensor.shape, 7, requires_grad=True) for name, tensor in biases.items()}
    embeddings = [nn.Parameter(row.clone()) for row in method.clients.stack("embedding")]
    phi = [*trunk.parameters(), *biases.values(), *heads.values()]

    def made(client):
        features = trunk(embeddings[client][None])[0]
        return {name: bias + heads[name] @ features for name, bias in biases.items()}

    fit(method, data, 4, bare=True)
    for index in range(4):
        moves, change = {}, [torch.zeros_like(tensor) for tensor in phi]
        samples = data.make_round(index).examples.counts.sum()
        for client, own in participants(data, index):
            start = made(client)
            before = {name: tensor.detach() for name, tensor in start.items()}
            after, _ = trained(method.network, before, own, (1, "train", index, "all"), epochs=2)
            sum((start[name] * (before[name] - after[name])).sum() for name in start).backward()
            moves[client] = embeddings[client].grad
            for total, tensor in zip(change, phi, strict=True):
                total += tensor.grad * own.counts / samples
            for tensor in (*phi, embeddings[client]):
                tensor.grad = None
        with torch.no_grad():
            for client, move in moves.items():
                embeddings[client] -= 0.5 * move
            for tensor, total in zip(phi, change, strict=True):
                tensor -= 0.5 * total
    assert max(float(tensor.detach().abs().max()) for tensor in heads.values()) > 1e-3
    found = method.generate(method.broadcast(), method.clients.stack("embedding"))
    for client in range(6):
        expected = {name: tensor.detach() for name, tensor in made(client).items()}
        assert distance(expected, {name: stack[client] for name, stack in found.items()}) < 1e-10
    assert (torch.stack([*embeddings]).detach() - method.clients.stack("embedding")).abs().max() < 1e-10


def test_after_the_first_round_models_differ_by_how_alike_the_trunk_makes_them(train, ragged_data):
    """W begins as zeros: theta_i = w - hyper_lr sum_j weight_j (1 + z_i z_j) delta_j, with z by the trunk."""
    data, first = ragged_data(), MLP((4,), 6, (6,))
    method = built(partial(PFedHN, hyper_lr=0.3, width=6, layers=1, embedding=4), data)
    first.load_state_dict({name: method.server.tree[f"trunk.{name}"] for name in first.state_dict()})
    start, features = tensors(method.network), first(method.clients.stack("embedding")).detach()
    method = train(partial(PFedHN, hyper_lr=0.3, width=6, layers=1, embedding=4), 1, data)
    weights = data.tables["train"].counts / data.tables["train"].counts.sum()
    alike = 1 + features @ features.T
    models = method.generate(method.broadcast(), method.clients.stack("embedding"))
    for name, changes in rows(method, "update.").items():
        expected = start[name] - 0.3 * torch.tensordot(alike * weights, changes, dims=1)
        assert (models[name] - expected).abs().max() < 1e-12


def test_a_trunk_of_zeros_is_fedavg(pool_of, fit):
    def run(make, **options):
        data = pool_of(4)
        method = built(make, data, **options)
        for name in ("trunk.fc4.weight", "trunk.fc4.bias"):
            if name in method.server.names:
                method.server.tree[name].zero_()
        fit(method, data, 3, bare=True)
        return method

    one, other = run(partial(PFedHN, hyper_lr=1.0)), run(FedAvg)
    assert distance(one.network, other.network) < 1e-12
    assert all(float(tensor.abs().max()) == 0 for name, tensor in one.server.tree.items() if name.startswith("heads."))
