import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.models import AlexNet

GREY = (1, 32, 32)


def test_parameter_counts_of_layers_and_head():
    # 32 -> 16 -> 8 -> 4 -> 2: 256*2*2 = 1024 features (DePRL, Table 5)
    convolutions = [9 * 64 + 64, 64 * 9 * 64 + 64, 64 * 9 * 128 + 128, 128 * 9 * 128 + 128, 128 * 9 * 256 + 256]
    linear = [1024 * 512 + 512, 512 * 512 + 512, 512 * 10 + 10]
    network = AlexNet(GREY, 10)
    layers = [sum(tensor.numel() for tensor in layer.parameters()) for layer in network]
    assert [size for size in layers if size] == convolutions + linear
    assert sum(layers) == 1_346_762
    assert sum(network.state_dict()[name].numel() for name in network.cut(1)[1]) == 5_130


def reference(weights, values):
    """DePRL's Table 5, written out."""
    for number in range(1, 6):
        layer = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
        values = F.conv2d(values, *layer, stride=2 if number == 1 else 1, padding=1).clamp(min=0)
        values = F.max_pool2d(values, 2) if number in (1, 2, 5) else values
    values = values.reshape(len(values), -1)
    for number in range(1, 4):
        values = (values if number == 1 else values.clamp(min=0)) @ weights[f"fc{number}.weight"].T
        values = values + weights[f"fc{number}.bias"]
    return values


@pytest.mark.parametrize("shape", [GREY, (1, 28, 28), (3, 15, 47)])
def test_output_is_the_papers_layers(shape):
    network = AlexNet(shape, 10).double().eval()
    inputs = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(inputs), reference(network.state_dict(), inputs))


def test_dropout_is_before_the_first_two_linear_layers():
    layers = list(AlexNet(GREY, 10).named_children())
    places = [place for place, (_, layer) in enumerate(layers) if isinstance(layer, nn.Dropout)]
    assert [(layers[place - 1][0], layers[place + 1][0]) for place in places] == [("flatten", "fc1"), ("relu6", "fc2")]
    assert [layers[place][1].p for place in places] == [0.2, 0.2]


@pytest.mark.parametrize("shape", [(1, 14, 15), (1, 28, 8), (784,), (1, 1, 32, 32)])
def test_too_small_images_are_refused(shape):
    with pytest.raises(PflError, match=r"^model\.network: AlexNet .* 15 x 15; .*"):
        AlexNet(shape, 10)
