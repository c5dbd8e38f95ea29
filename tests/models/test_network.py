import re

import pytest
import torch
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import (
    MLP,
    VGG,
    AlexNet,
    CharGRU,
    ConvNet,
    LeNet5,
    LinearNetwork,
    LogisticRegression,
    LSTMClassifier,
    Network,
    ProportionalHazards,
    ResNet18,
    TweetLSTM,
    WideResNet,
    WordLSTM,
)
from pfl_lightning.models.network import two_inputs

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
CIFAR100 = {"channels": (64, 128), "hidden": (256, 128), "dropout": 0.6}
HARBOX = {"hidden": (512, 256, 128, 64), "dropouts": (0.05, 0.05, 0.05)}


@pytest.mark.parametrize(
    ("kind", "shape", "classes", "options", "count", "head"),
    [
        # linear layers: inputs * outputs + outputs
        (MLP, GREY, 10, {}, 784 * 512 + 512 + 512 * 256 + 256 + 256 * 64 + 64 + 650, 64 * 10 + 10),  # SRPFL's
        (MLP, (4,), 3, {"hidden": ()}, 15, None),
        (LogisticRegression, GREY, 10, {}, 784 * 10 + 10, None),  # FedMac's MLR
        (LogisticRegression, (60,), 2, {}, 61, None),  # two classes have one output
        (ProportionalHazards, (39,), 10, {}, 39 + 10, None),
        (LinearNetwork, (1, 4, 5), 10, {"rank": 3}, 20 * 3 + 3 * 10, 3 * 10),
        # 32 -> 28 -> 14 -> 10 -> 5: 64*5*5 = 1600 features (SRPFL's network)
        (LeNet5, COLOUR, 10, {}, 75 * 64 + 64 + 64 * 25 * 64 + 64 + 1600 * 120 + 120 + 120 * 64 + 64 + 650, 650),
        # 28 -> 24 -> 12 -> 8 -> 4: 64*4*4 = 1024 features (Delta-FL's network)
        (ConvNet, GREY, 62, {}, 25 * 32 + 32 + 32 * 25 * 64 + 64 + 1024 * 62 + 62, 1024 * 62 + 62),
        (ConvNet, GREY, 10, {"hidden": [512]}, 832 + 51_264 + 1024 * 512 + 512 + 5_130, 5_130),  # PFLlib's
        # 32 -> 16 -> 8 -> 4 -> 2: 256*2*2 = 1024 features (DePRL, Table 5); convolutions 9*inputs*outputs + outputs
        (AlexNet, (1, 32, 32), 10, {}, 640 + 36_928 + 73_856 + 147_584 + 295_168 + 524_800 + 262_656 + 5_130, 5_130),
        # convolutions: 9,220,480; 512*512+512 twice; 512*10+10 (DePRL's VGG-11)
        (VGG, COLOUR, 10, {}, 9_220_480 + 2 * 262_656 + 5_130, 5_130),
        (WideResNet, COLOUR, 10, {}, 691_674, 64 * 2 * 10 + 10),
        (WideResNet, COLOUR, 10, {"depth": 28, "width": 10}, 36_479_194, 64 * 10 * 10 + 10),
        # gates * hidden * (inputs + hidden + 2 biases) (Delta-FL's networks)
        (CharGRU, (20, 53), 53, {}, 3 * 128 * (53 + 128 + 2) + 6_837, 128 * 53 + 53),
        (LSTMClassifier, (20, 50), 2, {}, 4 * 50 * (50 + 50 + 2) + 51, 50 + 1),
        # two directions, of which the second layer reads both (SRPFL's network)
        (WordLSTM, (10, 10_002), 10_002, {}, 2_000_400 + 1024 * (458 + 514) + 257 * 10_002, 257 * 10_002),  # LEAF's
        (TweetLSTM, (30, 10_002), 2, {}, 1_000_200 + 2 * 4 * 256 * (358 + 770) + 512 * 5 + 5 + 6, 5 + 1),
    ],
)
def test_parameter_counts_of_network_and_head(kind, shape, classes, options, count, head):
    with torch.device("meta"):
        network = kind(shape, classes, **options)
    sizes = {name: tensor.numel() for name, tensor in network.named_parameters()}
    assert sum(sizes.values()) == count
    assert head is None or sum(sizes.get(name, 0) for name in network.cut(1)[1]) == head


@pytest.mark.parametrize(
    ("network", "places"),
    [
        (MLP((9, 100), 5, **HARBOX), {"relu1": 0.05, "relu2": 0.05, "relu3": 0.05}),  # DePRL, Table 6
        (MLP((4,), 3, (5, 6, 7), (0.0, 0.3)), {"relu2": 0.3}),
        (LeNet5(COLOUR, 100, **CIFAR100), {"relu4": 0.6}),
        (LeNet5(COLOUR, 10), {}),
        (AlexNet((1, 32, 32), 10), {"flatten": 0.2, "relu6": 0.2}),
        (VGG((3, 4, 4), 10, [4, "M", 5, "M"]), {"flatten": 0.2, "relu4": 0.2}),
        (VGG((3, 4, 4), 10, [4, "M", 5, "M"], dropout=0.0), {}),
        (TweetLSTM((7, 11), 3, 4, 3, 5, 0.2), {"embedding": 0.2, "lstm": 0.2, "relu1": 0.2}),
        (TweetLSTM((7, 11), 3, 4, 3, 5, 0.0), {"embedding": 0.0, "lstm": 0.0}),
    ],
)
def test_dropout_is_where_the_paper_has_it(network, places):
    dropouts, before = {}, ""
    for path, layer in network.named_modules():
        if isinstance(layer, nn.Dropout):
            dropouts[path.partition(".")[0] if "." in path else before] = layer.p
        elif not list(layer.children()):
            before = path
    assert dropouts == places


@pytest.mark.parametrize(
    ("kind", "smallest"),
    [
        (LeNet5, (16, 23)),
        (ConvNet, (23, 16)),
        (AlexNet, (15, 47)),
        (ResNet18, (9, 9)),
        (WideResNet, (5, 5)),
        (VGG, (32, 32)),
    ],
)
def test_one_image_of_the_smallest_size_is_enough_and_a_smaller_one_is_refused(kind, smallest):
    assert kind((2, *smallest), 10).train()(torch.zeros(1, 2, *smallest)).shape == (1, 10)
    side = min(smallest)
    line = rf"^model\.network: {kind.__name__} takes images of at least {side} x {side}, got inputs of \("
    for shape in [(1, side, side - 1), (1, side - 1, side), (784,), (1, 1, side, side)]:
        with pytest.raises(PflError, match=line):
            kind(shape, 10)


@pytest.mark.parametrize("kind", [TweetLSTM, CharGRU, LSTMClassifier])
def test_images_are_no_sequences(kind):
    with pytest.raises(PflError, match=rf"model\.network: {kind.__name__} takes sequences"):
        kind(GREY, 10)


def normalised():
    layers = [nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 3)]
    return Network(dict(zip(["conv", "norm", "relu", "flatten", "fc"], layers, strict=True)))


@pytest.mark.parametrize(
    ("network", "head", "layers"),
    [
        (LeNet5(COLOUR, 10), 2, {"fc2", "fc3"}),
        (MLP(GREY, 10), 2, {"fc3", "fc4"}),
        (ConvNet(GREY, 62), 2, {"conv2", "fc1"}),
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
    names = {name for name in network.state_dict() if name.split(".")[0] in layers}
    assert network.cut(head) == (network.state_dict().keys() - names, names)


@pytest.mark.parametrize(
    ("network", "head", "allowed"),
    [
        (MLP(GREY, 10), 0, "1 to 3"),
        (MLP(GREY, 10), 4, "1 to 3"),
        (MLP(GREY, 10), "fc5", "1 to 3, or some of fc1, fc2, fc3, fc4, the layers of MLP"),
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
    network, other = MLP(GREY, 10), MLP(GREY, 10)
    module = network.module_with(other.state_dict())
    assert type(module) is MLP
    assert all(map(torch.equal, module.parameters(), other.parameters()))
    assert not any(map(torch.equal, module.parameters(), network.parameters()))


def test_a_kind_of_layers_has_its_subclasses():
    """The output of torch's attention is of a class of its own, which is a linear layer."""
    network = Network({"attention": nn.MultiheadAttention(8, 2), "fc": nn.Linear(8, 4)})
    linear = {f"{path}.{name}" for path in ("attention.out_proj", "fc") for name in ("weight", "bias")}
    assert network.parts(1)["Linear"] == linear


def test_tokens_to_try_a_network_with_are_no_padding_even_of_two():
    assert two_inputs((3, 2), "tokens").tolist() == [[1, 1, 1]] * 2
    assert int(two_inputs((500, 4), "tokens").min()) == 1
