from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from fakes.methods import built
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.data import Digits
from pfl_lightning.methods import Ditto, FedAvg, Local
from pfl_lightning.models import MLP
from pfl_lightning.seeding import permutations
from pfl_lightning.system import Participation


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


def test_the_common_model_is_fedavgs_bit_for_bit(ragged_data, fit):
    states = []
    for number, make in enumerate((FedAvg, Ditto)):
        method = built(make, ragged_data())
        fit(method, ragged_data(), 2, str(number))
        states.append(method.network.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_without_proximity_the_personal_models_are_those_that_clients_train_alone(ragged_data, fit):
    # with one batch an epoch, since the order of the samples is another one
    ditto = built(partial(Ditto, proximity=0.0), ragged_data(), batch_size=100)
    local = built(Local, ragged_data(), batch_size=100)
    for number, method in enumerate((ditto, local)):
        fit(method, ragged_data(participation=Participation(pool_size=3)), 3, str(number))
    for name in local.clients.names:
        found, expected = ditto.clients.stack(f"personal.{name}"), local.clients.stack(name)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_personal_models_follow_a_plain_loop_over_two_rounds(ragged_data, fit):
    """The anchor is the model as it was received in the same round."""
    data = ragged_data(val_fraction=0.0)
    method = built(partial(Ditto, proximity=0.7, personal_epochs=2), data, momentum=0.5, weight_decay=0.0)
    network, received = method.network, []
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    remember = CallOnRoundStart(lambda: received.append({n: t.clone() for n, t in network.state_dict().items()}))
    fit(method, data, 2, callbacks=[remember])
    for row, client in enumerate(data.make_round(0).examples.ids.tolist()):
        v = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        for index, anchor in enumerate(received):
            train_personal(network, v, anchor, data.make_round(index).examples, row, index)
        for name, tensor in v.items():
            found = method.clients.stack(f"personal.{name}")[client]
            assert (found - tensor.detach()).abs().max() < 1e-10
            assert (found - start[name]).abs().max() > 1e-3


def train_personal(network, v, anchor, examples, row, round_index):
    own = examples.rows(row, row + 1)
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    optimizer = torch.optim.SGD(v.values(), lr=0.1, momentum=0.5)
    for epoch in range(2):
        key = (1, "train", round_index, "personal", "order", epoch)
        order = permutations(key, own.ids, own.counts, examples.longest)[0, : len(targets)]
        for batch in order.split(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(functional_call(network, v, inputs[batch]), targets[batch])
            (loss + 0.35 * sum((v[name] - anchor[name]).square().sum() for name in v)).backward()
            optimizer.step()


class CallOnRoundStart(pl.Callback):
    def __init__(self, call):
        self.call = call

    def on_train_batch_start(self, *_):
        self.call()


def test_clients_are_evaluated_by_their_personal_model_and_by_the_common_one(ragged_data, fit):
    data = ragged_data()
    method = built(Ditto, data)
    fit(method, data, 1)
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    (first, personal), (second, common) = method.evaluate(train, (0,))
    assert (first, second) == method.eval_models == ("personal", "global")
    for name, tensor in method.network.state_dict().items():
        assert torch.equal(personal.own[name], method.clients.stack(f"personal.{name}")[train.ids])
        assert torch.equal(common.shared[name], tensor)


def test_new_clients_that_train_no_head_begin_with_the_common_model(fit):
    torch.set_default_dtype(torch.float32)
    method = Ditto(network=partial(MLP, hidden=(8,)))
    trainer = fit(method, Digits(num_clients=5), 2)
    trainer.test(method, Digits(num_clients=5, new_clients=4, new_head_epochs=0))
    for name, tensor in method.network.state_dict().items():
        rows = method.clients.stack(f"personal.{name}")
        assert torch.equal(rows, tensor.expand(4, *tensor.shape))


def test_the_chunk_counts_what_clients_keep_beside_the_network(ragged_data):
    sizes = {make: sum(built(make, ragged_data()).cohort.sizes) for make in (FedAvg, Local, Ditto)}
    assert sizes[Local] == sizes[FedAvg]
    assert sizes[Ditto] == 2 * sizes[FedAvg]
