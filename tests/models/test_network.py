import re

import pytest
import torch
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, ConvNet, LeNet5, LogisticRegression, Network

COLOUR, GREY = (3, 32, 32), (1, 28, 28)


def normalised():
    layers = [nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 3)]
    return Network(dict(zip(["conv", "norm", "relu", "flatten", "fc"], layers, strict=True)))


@pytest.mark.parametrize(
    ("network", "head", "layers"),
    [
        (LeNet5(COLOUR, 10), 1, {"fc3"}),
        (LeNet5(COLOUR, 10), 2, {"fc2", "fc3"}),
        (LeNet5(COLOUR, 100, (64, 128), (256, 128), 0.6), 2, {"fc2", "fc3"}),
        (MLP(GREY, 10), 1, {"fc4"}),
        (MLP(GREY, 10), 2, {"fc3", "fc4"}),
        (ConvNet(GREY, 62), 1, {"fc"}),
        (ConvNet(GREY, 62), 2, {"conv2", "fc"}),
        (LogisticRegression(GREY, 10), 1, {"fc"}),
        (normalised(), 1, {"fc"}),
        (normalised(), 2, {"norm", "fc"}),
        (MLP(GREY, 10), "fc4", {"fc4"}),
        (MLP(GREY, 10), ["fc1", "fc4"], {"fc1", "fc4"}),
        (LogisticRegression(GREY, 10), "fc", {"fc"}),
    ],
)
def test_head_is_the_last_layers_and_body_the_rest(network, head, layers):
    # as in SRPFL (arXiv:2206.02078): FedRep's personal head is the last layer, LG-FedAvg's shared head the last two
    body, found = network.cut(head)
    assert {name.split(".")[0] for name in found} == layers
    assert body | found == set(network.state_dict())
    assert not body & found


def test_buffers_follow_their_layer():
    body, head = (normalised().cut(head)[side] for head, side in ((1, 0), (2, 1)))
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} <= body & head


@pytest.mark.parametrize(
    ("network", "head", "allowed"),
    [
        (MLP(GREY, 10), 0, "1 to 3"),
        (MLP(GREY, 10), -1, "1 to 3"),
        (MLP(GREY, 10), 4, "1 to 3"),
        (LeNet5(COLOUR, 10), 5, "1 to 4"),
        (LogisticRegression(GREY, 10), 2, "1 to 1"),
        (MLP(GREY, 10), "fc5", "1 to 3, or some of fc1, fc2, fc3, fc4, the layers of MLP"),
        (MLP(GREY, 10), "0", "some of fc1"),
        (MLP(GREY, 10), "flatten", "some of fc1"),
        (MLP(GREY, 10), ["fc4", "f"], "some of fc1"),
        (MLP(GREY, 10), [], "some of fc1"),
        (MLP(GREY, 10), ["fc1", "fc2", "fc3", "fc4"], "some of fc1"),
    ],
)
def test_impossible_cut_is_refused(network, head, allowed):
    with pytest.raises(PflError, match=rf"model\.head: {re.escape(str(head))} .*{allowed}"):
        network.cut(head)


def test_a_module_with_other_tensors_is_a_copy_with_these():
    network, tensors = MLP(GREY, 10), MLP(GREY, 10).state_dict()
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    module = network.module_with(tensors)
    assert type(module) is MLP
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, tensors[name])
        assert torch.equal(network.state_dict()[name], start[name])
