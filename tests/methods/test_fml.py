from copy import deepcopy
from functools import partial
from math import log

import pytest
import torch
from fakes.loops import batches, participants
from fakes.methods import built, distance, row, tensors
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FML, FedAvg, FedMRL, Local
from pfl_lightning.models import MLP, Architectures

pytestmark = pytest.mark.usefixtures("float64")

SMALL = partial(MLP, hidden=(4,))


def side(method, client, name):
    """The tensors of one of a client's models, in the network's own names."""
    kept = {**tensors(method.network), **row(method, client)}
    prefixes = (f"bodies.{name}.", f"heads.{name}.")
    return {key.removeprefix(p): tensor for key, tensor in kept.items() for p in prefixes if key.startswith(p)}


def test_each_model_learns_from_labels_and_from_the_other():
    method = FML()
    outputs = torch.tensor([[log(3), 0.0, 0.0, 0.0]], requires_grad=True)
    halves = [outputs[:, :2], outputs[:, 2:]]
    target = torch.tensor([0])
    private = F.cross_entropy(halves[0], target)
    p, q = (half.detach().softmax(1) for half in halves)
    assert (0.5 * private + 0.5 * (q * (q / p).log()).sum()).item() == pytest.approx(0.215762, abs=1e-6)
    loss = method.paired_losses(outputs, outputs, target, {"amounts": torch.ones(1)})
    assert loss.item() == pytest.approx(0.215762 + 0.411980, abs=1e-6)
    loss.sum().backward()
    torch.testing.assert_close(outputs.grad, torch.tensor([[0.0, 0.0, -0.375, 0.375]]), atol=1e-12, rtol=0)


def test_by_labels_alone_the_models_are_those_of_local_and_of_fedavg(ragged_data, fit):
    data = ragged_data()
    method = built(partial(FML, private_share=1.0, shared_share=1.0), data)
    local, fedavg = built(Local, data), built(FedAvg, data)
    assert distance(side(method, 0, "private"), tensors(local.network)) == 0
    fedavg.network.load_state_dict(side(method, 0, "shared"))
    for number, each in enumerate((method, local, fedavg)):
        fit(each, data, 2, str(number), bare=True)
    for client in range(data.num_clients):
        assert distance(side(method, client, "private"), row(local, client)) < 1e-12
    assert distance(side(method, 0, "shared"), tensors(fedavg.network)) < 1e-12


def test_a_round_is_that_of_a_plain_loop_with_two_networks(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(FML, shared_network=SMALL, weighting="uniform"), data, weight_decay=0.0)
    networks = [method.client(0), SMALL(data.input_shape, 3)]
    for network, name in zip(networks, ("private", "shared"), strict=True):
        network.load_state_dict(side(method, 0, name))
    fit(method, data, 1, bare=True)
    trained = []
    for client, own in participants(data, 0):
        models = [deepcopy(network).train() for network in networks]
        optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
        for inputs, targets in batches(own, (1, "train", 0, "all"))[0]:
            f, g = (model(inputs).log_softmax(1) for model in models)
            loss = F.nll_loss(f, targets) / 2 + F.kl_div(f, g.detach(), reduction="batchmean", log_target=True) / 2
            loss += F.nll_loss(g, targets) / 2 + F.kl_div(g, f.detach(), reduction="batchmean", log_target=True) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert distance(side(method, client, "private"), tensors(models[0])) < 1e-12
        trained.append(tensors(models[1]))
    mean = {name: torch.stack([model[name] for model in trained]).mean(0) for name in trained[0]}
    assert distance(side(method, 0, "shared"), mean) < 1e-12


@pytest.mark.parametrize("make", [FML, FedMRL])
def test_only_the_shared_model_travels_and_it_is_the_smallest_by_default(make, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    networks = partial(Architectures, networks=[partial(MLP, hidden=(9,)), SMALL])
    method = built(make, data, network=networks)
    fit(method, data, 1, bare=True)
    size = sum(parameter.numel() for parameter in SMALL(data.input_shape, 3).parameters())
    assert method.accounting.ledger.down == 64 * size * data.num_clients
    assert method.accounting.ledger.up == 64 * (size + 1) * data.num_clients, "and each client's loss"


@pytest.mark.parametrize(
    ("make", "hidden", "message"),
    [
        (FedMRL, (7,), "model.shared_network must have at most the 5 features of MLP, got 7"),
        (FML, (), r"model.shared_network: this head \(fc1\) has no features"),
    ],
)
def test_networks_that_do_not_pair_are_refused_in_a_line(make, hidden, message, ragged_data):
    with pytest.raises(PflError, match=message):
        built(partial(make, shared_network=partial(MLP, hidden=hidden)), ragged_data())
