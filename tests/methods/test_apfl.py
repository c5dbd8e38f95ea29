from functools import partial

import pytest
import torch
from fakes.loops import plain_rounds
from fakes.methods import built, distance, row, tensors
from plain_methods import PlainAPFL

from pfl_lightning.methods import APFL, FedAvg

pytestmark = pytest.mark.usefixtures("float64")


class Decayed(PlainAPFL):
    def loss_of(self, model, client):
        def loss(*batch):
            decay = sum(tensor.square().sum() for tensor in model.parameters() if tensor.ndim > 1)
            return self.usual_loss(model)(*batch) + 0.05 * decay

        return loss


def test_a_round_is_a_plain_loop(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(APFL, alpha=0.3), data, weight_decay=0.1, epochs=2)
    plain = plain_rounds(Decayed, method, data, 1, alpha=0.3, epochs=2)
    fit(method, data, 1, bare=True)
    for client, state in plain.states.items():
        assert distance(state, row(method, client)) < 1e-10
    assert max(abs(state["weight"] - 0.3) for state in plain.states.values()) > 1e-3


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
