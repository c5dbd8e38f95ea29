import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.models import ConvNet, LeNet5

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
CIFAR100 = {"channels": (64, 128), "hidden": (256, 128), "dropout": 0.6}


@pytest.mark.parametrize(
    ("network", "sizes"),
    [
        # 32 -> 28 -> 14 -> 10 -> 5: 64*5*5 = 1600 and 128*5*5 = 3200 features (SRPFL's networks)
        (
            LeNet5(COLOUR, 10),
            [3 * 25 * 64 + 64, 64 * 25 * 64 + 64, 1600 * 120 + 120, 120 * 64 + 64, 64 * 10 + 10],  # 307,842
        ),
        (
            LeNet5(COLOUR, 100, **CIFAR100),
            [3 * 25 * 64 + 64, 64 * 25 * 128 + 128, 3200 * 256 + 256, 256 * 128 + 128, 128 * 100 + 100],  # 1,075,044
        ),
        # 28 -> 24 -> 12 -> 8 -> 4: 64*4*4 = 1024 features (Delta-FL's network)
        (ConvNet(GREY, 62), [25 * 32 + 32, 32 * 25 * 64 + 64, 1024 * 62 + 62]),  # 115,646
    ],
    ids=["CIFAR-10", "CIFAR-100", "EMNIST"],
)
def test_parameter_counts(network, sizes):
    layers = [sum(tensor.numel() for tensor in layer.parameters()) for layer in network]
    assert [size for size in layers if size] == sizes


def reference(weights, values, linear):
    """Convolutions, then linear layers with ReLU between them, written out."""
    for name in ("conv1", "conv2"):
        values = F.max_pool2d(F.conv2d(values, weights[f"{name}.weight"], weights[f"{name}.bias"]).clamp(min=0), 2)
    values = values.reshape(len(values), -1)
    for number, name in enumerate(linear):
        values = (values.clamp(min=0) if number else values) @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return values


@pytest.mark.parametrize(
    ("network", "shape", "linear"),
    [
        (LeNet5(COLOUR, 10, (4, 5), (7, 6)), COLOUR, ["fc1", "fc2", "fc3"]),
        (LeNet5(COLOUR, 10, (4, 5), (7, 6), dropout=0.6).eval(), COLOUR, ["fc1", "fc2", "fc3"]),
        (LeNet5((1, 16, 23), 3, (4, 5), (7, 6)), (1, 16, 23), ["fc1", "fc2", "fc3"]),
        (ConvNet(GREY, 62, (4, 5)), GREY, ["fc"]),
    ],
)
def test_output_is_the_papers_layers(network, shape, linear):
    inputs = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = network.double()(inputs)
    torch.testing.assert_close(outputs, reference(network.state_dict(), inputs, linear))


def test_dropout_is_once_and_before_the_last_layer():
    layers = list(LeNet5(COLOUR, 100, **CIFAR100))
    places = [place for place, layer in enumerate(layers) if isinstance(layer, nn.Dropout)]
    assert places == [len(layers) - 2]
    assert layers[-2].p == 0.6
    assert not any(isinstance(layer, nn.Dropout) for layer in LeNet5(COLOUR, 10))


@pytest.mark.parametrize("network", [LeNet5, ConvNet])
@pytest.mark.parametrize("shape", [(1, 15, 16), (1, 28, 8), (784,), (1, 1, 28, 28)])
def test_too_small_images_are_refused(network, shape):
    with pytest.raises(PflError, match=rf"model\.network: {network.__name__} .* 16 x 16"):
        network(shape, 10)
