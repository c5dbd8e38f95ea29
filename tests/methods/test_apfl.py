from functools import partial
from itertools import chain

import pytest
import torch
from fakes.loops import batches, cross_entropy, participants
from fakes.methods import built, distance, row, tensors
from torch.func import grad

from pfl_lightning.methods import APFL, FedAvg

pytestmark = pytest.mark.usefixtures("float64")


def test_a_round_is_a_plain_loop(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(APFL, alpha=0.3), data, weight_decay=0.1, epochs=2)
    start, shares = tensors(method.network), []

    def loss(model, *batch):
        decay = sum(tensor.square().sum() for tensor in model.values() if tensor.ndim > 1)
        return cross_entropy(method.network, model, *batch) + 0.05 * decay

    fit(method, data, 1, bare=True)
    for client, own in participants(data, 0):
        w, v, a = start, start, 0.3
        for batch in chain(*batches(own, (1, "train", 0, "all"), epochs=2)):
            slopes, grads = (
                grad(loss)({name: a * v[name] + (1 - a) * w[name] for name in w}, *batch),
                grad(loss)(w, *batch),
            )
            inner = sum(((v[name] - w[name]) * slopes[name]).sum() for name in w)
            v = {name: v[name] - 0.1 * a * slopes[name] for name in v}
            w = {name: w[name] - 0.1 * grads[name] for name in w}
            a = min(max(float(a - 0.1 * inner), 0.0), 1.0)
        assert distance(v, row(method, client, "personal.")) < 1e-10
        assert method.clients.stack("weight")[client] == pytest.approx(a, abs=1e-10)
        shares.append(a)
    assert max(abs(a - 0.3) for a in shares) > 1e-3


def test_rows_take_no_memory_before_their_clients_train(ragged_data):
    method = built(APFL, ragged_data())
    state = method.initial_state(tensors(method.network), 6, seed=0)
    assert {stack.stride(0) for stack in state.values()} == {0}
    assert state["weight"].tolist() == [0.5] * 6


def test_a_mix_of_the_global_model_alone_is_fedavg(train):
    apfl, fedavg = train(partial(APFL, alpha=0.0, adaptive=False), 2), train(FedAvg, 2, eval_epochs=0)
    assert distance(apfl.network, fedavg.network) < 1e-12
    mix = apfl.eval_model("personal", None, apfl.received(torch.arange(6)), ())
    assert distance(mix.select(fedavg.network.state_dict()).client(2), fedavg.network) < 1e-12
