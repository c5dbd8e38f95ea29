import pytest
import torch
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.models import WideResNet

COLOUR = (3, 32, 32)


def normalised(values):
    """BatchNorm with weight 1 and bias 0, then ReLU."""
    mean, variance = values.mean((0, 2, 3), keepdim=True), values.var((0, 2, 3), unbiased=False, keepdim=True)
    return ((values - mean) / (variance + 1e-5).sqrt()).clamp(min=0)


def reference(weights, values):
    """The network of width 1 and one block per stage, written out."""
    values = F.conv2d(values, weights["conv1.weight"], padding=1)
    for block, stride in (("block1_1", 1), ("block2_1", 2), ("block3_1", 2)):
        active = normalised(values)
        residual = F.conv2d(active, weights[f"{block}.conv1.weight"], stride=stride, padding=1)
        residual = F.conv2d(normalised(residual), weights[f"{block}.conv2.weight"], padding=1)
        changes = block != "block1_1"  # 16 -> 16 channels, then 32 and 64
        values = F.conv2d(active, weights[f"{block}.shortcut.weight"], stride=stride) if changes else values
        values = values + residual
    return normalised(values).mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]


def test_output_is_the_papers_pre_activation_blocks():
    network = WideResNet(COLOUR, 10, depth=10, width=1).double()
    inputs = torch.randn(2, *COLOUR, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(inputs), reference(network.state_dict(), inputs))


@pytest.mark.parametrize("depth", [4, 15, 17])
def test_impossible_depth_is_refused(depth):
    with pytest.raises(PflError, match=rf"^model\.network\.depth must be 10, 16, 22, 28, \.\.\., got {depth}$"):
        WideResNet(COLOUR, 10, depth)
