import pytest
import torch
from torch.nn import functional as F

from pfl_lightning.models import ConvNet, LeNet5

COLOUR, GREY = (3, 32, 32), (1, 28, 28)


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
        (ConvNet(GREY, 62, (4, 5)), GREY, ["fc1"]),
        (ConvNet(GREY, 62, (4, 5), [7, 6]), GREY, ["fc1", "fc2", "fc3"]),
    ],
)
def test_output_is_the_papers_layers(network, shape, linear):
    inputs = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = network.double()(inputs)
    torch.testing.assert_close(outputs, reference(network.state_dict(), inputs, linear))
