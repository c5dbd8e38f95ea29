import pytest
import torch
from torch.nn import functional as F

from pfl_lightning.models import AlexNet

GREY = (1, 32, 32)


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
