from functools import partial
from itertools import chain

import pytest
import torch
from fakes.loops import batches, cross_entropy, descended, features, participants, trained
from fakes.methods import built, distance, row, rows, tensors, weighted_mean
from torch.func import grad
from torch.nn import functional as F

from pfl_lightning.client import Engine
from pfl_lightning.methods import FedAS, FedPer, Sparsity
from pfl_lightning.tasks import Classification

pytestmark = pytest.mark.usefixtures("float64")


def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, pool_of, fit):
    data = pool_of(4)
    make = partial(FedAS, align_epochs=2, align_lr=0.3, aggregator=aggregator)
    method = built(make, data, weight_decay=0.0, epochs=2)
    start, body = tensors(method.network), method.parts["body"]
    models, shared = [start] * 6, {name: start[name] for name in body}
    fit(method, data, 3, bare=True)
    for index in range(3):
        bodies, traces, key = [], [], (1, "train", index)
        for client, own in participants(data, index):

            def away(model, inputs, targets, last=models[client]):
                return F.mse_loss(features(model, inputs), features(last, inputs))

            model = descended({**models[client], **shared}, away, own, (*key, "align"), lr=0.3, epochs=2)
            model, _ = trained(method.network, model, own, (*key, "all"), epochs=2)
            slope = grad(partial(cross_entropy, method.network))
            slopes = [slope(model, *batch) for batch in chain(*batches(own, (*key, "trace")))]
            traces.append(sum(slope.square().sum() for each in slopes for slope in each.values()))
            models[client] = model
            bodies.append({name: model[name] for name in body})
        shared = weighted_mean(bodies, torch.stack(traces))
    assert distance(shared, method.network) < (1e-9 if aggregator is None else 1e-7)
    for client, model in enumerate(models):
        assert distance(model, {**row(method, client), **row(method, client, "previous.")}) < 1e-7


def test_one_client_a_round_that_aligns_nothing_is_fedper(train, pool_of):
    fedas, fedper = (train(make, 4, pool_of(1)) for make in (partial(FedAS, align_epochs=0), FedPer))
    assert distance(fedper.network, fedas.network) < 1e-12
    assert distance(rows(fedper), rows(fedas)) < 1e-12


def flat(outputs, targets):
    return 0 * outputs.square().sum(1)


def test_without_slopes_nothing_moves(train, ragged_data):
    """All traces are 0 then."""
    method = train(partial(FedAS, task=Classification(flat)), 2, weight_decay=0.0)
    assert distance(built(FedAS, ragged_data()).network, method.network) < 1e-12


def test_the_penalty_is_on_the_local_loss_alone(train, monkeypatch):
    phases, taken = [], Engine.train

    def recorded(engine, examples, params, phase, key):
        phases.append((key[-1], phase.penalty is not None))
        return taken(engine, examples, params, phase, key)

    monkeypatch.setattr(Engine, "train", recorded)
    train(partial(FedAS, sparsity=Sparsity(weight=0.1)), 1)
    assert set(phases) == {("align", False), ("all", True), ("trace", False)}
