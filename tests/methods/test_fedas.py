from functools import partial
from itertools import chain

import pytest
import torch
from fakes.loops import batches, trained
from fakes.methods import built, distance, rows, tensors, weighted_mean
from torch.func import functional_call, grad
from torch.nn import functional as F

from pfl_lightning.client import Engine
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAS, FedPer, Sparsity
from pfl_lightning.models import LogisticRegression
from pfl_lightning.server import SecureAggregator
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("aggregator", [None, SecureAggregator(limit=1000.0)], ids=["clear", "secure"])
def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=4))
    make = partial(FedAS, align_epochs=2, align_lr=0.3, aggregator=aggregator)
    method = built(make, data, weight_decay=0.0, epochs=2)
    start, body = tensors(method.network), method.parts["body"]
    models, shared = [start] * 6, {name: start[name] for name in body}
    until_head = torch.nn.Sequential(*list(method.network.children())[:-1])

    def features(model, inputs):
        return functional_call(until_head, dict(zip(until_head.state_dict(), model.values(), strict=False)), inputs)

    def loss(model, inputs, targets):
        return F.cross_entropy(functional_call(method.network, model, inputs), targets)

    fit(method, data, 3, bare=True)
    for index in range(3):
        examples, bodies, traces = data.make_round(index).examples, [], []
        for row, client in enumerate(examples.ids.tolist()):
            own, last, model = examples.rows(row, row + 1), models[client], {**models[client], **shared}
            for inputs, _ in chain(*batches(own, (1, "train", index, "align"), epochs=2)):
                old = features(last, inputs)
                slopes = grad(lambda model, x=inputs, old=old: F.mse_loss(features(model, x), old))(model)
                model = {name: tensor - 0.3 * slopes[name] for name, tensor in model.items()}
            model, _ = trained(method.network, model, model, own, (1, "train", index, "all"), lr=0.1, epochs=2)
            slopes = [grad(loss)(model, *batch) for batch in chain(*batches(own, (1, "train", index, "trace")))]
            traces.append(sum(slope.square().sum() for each in slopes for slope in each.values()))
            models[client] = model
            bodies.append({name: model[name] for name in body})
        shared = weighted_mean(bodies, torch.stack(traces))
    assert distance(shared, method.network) < (1e-9 if aggregator is None else 1e-7)
    own, last = rows(method), rows(method, "previous.")
    for client, model in enumerate(models):
        assert distance(model, {n: (last if n in body else own)[n][client] for n in model}) < 1e-7


def test_one_client_a_round_that_aligns_nothing_is_fedper(train, ragged_data):
    def run(make):
        return train(make, 4, ragged_data(participation=Participation(pool_size=1)))

    fedas, fedper = run(partial(FedAS, align_epochs=0)), run(FedPer)
    assert distance(fedper.network, fedas.network) < 1e-12
    assert distance(rows(fedper), rows(fedas)) < 1e-12


def flat(outputs, targets):
    return 0 * outputs.square().sum(1)


def test_without_slopes_nothing_moves(train, ragged_data):
    """All traces are 0 then."""
    method = train(partial(FedAS, loss=flat), 2, weight_decay=0.0)
    assert distance(built(FedAS, ragged_data()).network, method.network) < 1e-12


def test_the_penalty_is_on_the_local_loss_alone(train, monkeypatch):
    phases, taken = [], Engine.train

    def recorded(engine, examples, params, phase, key):
        phases.append((key[-1], phase.penalty is not None))
        return taken(engine, examples, params, phase, key)

    monkeypatch.setattr(Engine, "train", recorded)
    train(partial(FedAS, sparsity=Sparsity(weight=0.1)), 1)
    assert set(phases) == {("align", False), ("all", True), ("trace", False)}


def test_a_network_without_a_body_is_one_line(ragged_data):
    with pytest.raises(PflError, match=r"^model.network: .*needs a body"):
        built(FedAS, ragged_data(), network=LogisticRegression)
