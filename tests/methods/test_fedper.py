"""Methods that keep a part of one model: FedPer and FedBN."""

from functools import partial

import pytest
import torch
from fakes.loops import participants, trained
from fakes.methods import assert_weighted_mean, built, distance, tensors
from fakes.networks import Normed
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedBN, FedPer
from pfl_lightning.models import Network

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(
    ("keeps", "kept"),
    [
        ("head", {"fc3.weight", "fc3.bias"}),
        ("fc1.*", {"fc1.weight", "fc1.bias"}),
        ("*bias", {"fc1.bias", "fc2.bias", "fc3.bias"}),
    ],
)
def test_a_round_is_a_plain_loop_whose_kept_part_stays_with_the_clients(keeps, kept, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(FedPer, keeps=keeps), data, weight_decay=0.0)
    assert {*method.clients.names} == kept
    start, key = tensors(method.network), (1, "train", 0, "all")
    fit(method, data, 1, bare=True)
    models = []
    for client, own in participants(data, 0):
        model, _ = trained(method.network, start, own, key)
        assert distance({n: method.clients.stack(n)[client] for n in kept}, model) < 1e-12
        models.append(model)
    assert_weighted_mean(method, start, models, data.make_round(0).examples.counts)


def of_images(input_shape, num_classes):
    """A convolution whose outputs are normed."""
    layers = {"conv": nn.Conv2d(1, 2, 9), "norm": nn.BatchNorm2d(2), "flat": nn.Flatten()}
    return Network({**layers, "head": nn.Linear(128, num_classes)})


@pytest.mark.parametrize("network", [Normed, of_images])
def test_fedbn_keeps_scales_shifts_and_statistics(network, ragged_data, fit):
    data = ragged_data()
    method = built(FedBN, data, network=network)
    norm = {name for name in method.network.state_dict() if "norm." in name}
    assert {*method.clients.names} == norm
    assert len(norm) == 5
    start = tensors(method.network)
    fit(method, data, 1, bare=True)
    assert all(torch.equal(method.network.state_dict()[name], start[name]) for name in norm)
    for name in norm:
        assert len(method.clients.stack(name).unique(dim=0)) > 1
    with pytest.raises(PflError, match="batched is not possible with BatchNorm"):  # which would count padding
        built(FedBN, data, network=network, backend="batched")


@pytest.mark.parametrize("make", [FedBN, partial(FedPer, keeps="*.bn*"), partial(FedPer, keeps="")])
def test_a_part_that_no_tensor_is_in_is_one_line(make, ragged_data):
    with pytest.raises(
        PflError,
        match=r"^model.keeps, or a part in the method: \S* ?matches no tensor of MLP; allowed: nothing, head, body",
    ):
        built(make, ragged_data())
