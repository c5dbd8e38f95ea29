import pytest
import torch
from fakes.references import linear_layers
from torch.nn import functional as F

from pfl_lightning.models import ConvNet, LeNet5

COLOUR = (3, 32, 32)
GREY = (1, 28, 28)
THREE = ["fc1", "fc2", "fc3"]


def reference(weights, values, linear):
    """Convolutions, then linear layers with ReLU between them, written out."""
    for name in ("conv1", "conv2"):
        values = F.max_pool2d(F.conv2d(values, weights[f"{name}.weight"], weights[f"{name}.bias"]).clamp(min=0), 2)
    return linear_layers(weights, values, linear)


@pytest.mark.parametrize(
    ("network", "shape", "linear"),
    [
        (LeNet5(COLOUR, 10, (4, 5), (7, 6)), COLOUR, THREE),
        (LeNet5((1, 16, 23), 3, (4, 5), (7, 6)), (1, 16, 23), THREE),
        (ConvNet(GREY, 62, (4, 5)), GREY, ["fc1"]),
        (ConvNet(GREY, 62, (4, 5), [7, 6]), GREY, THREE),
    ],
)
def test_output_is_the_papers_layers(network, shape, linear):
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    torch.testing.assert_close(network.double()(inputs), reference(network.state_dict(), inputs, linear))
