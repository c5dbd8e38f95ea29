import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet18

from pfl_lightning.errors import PflError
from pfl_lightning.models import ResNet18, WideResNet

COLOUR = (3, 32, 32)


def test_output_is_torchvisions_with_a_small_stem_and_no_max_pooling():
    reference = resnet18(num_classes=10)
    reference.conv1, reference.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    network = ResNet18(COLOUR, 10)
    weights = zip(network.state_dict(), reference.state_dict().values(), strict=True)
    network.load_state_dict(dict(weights))
    inputs = torch.randn(2, *COLOUR, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(inputs), reference(inputs))
    torch.testing.assert_close(network.eval()(inputs), reference.eval()(inputs))


def test_a_residual_block_is_one_layer_of_the_cut():
    with torch.device("meta"):
        head = ResNet18(COLOUR, 10).cut(3)[1]
    assert {name.split(".")[0] for name in head} == {"block4_1", "block4_2", "fc"}


def normalised(values):
    """BatchNorm with weight 1 and bias 0, then ReLU."""
    variance, mean = torch.var_mean(values, (0, 2, 3), unbiased=False, keepdim=True)
    return ((values - mean) / (variance + 1e-5).sqrt()).clamp(min=0)


def wide_resnet(weights, values):
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


def test_output_of_wide_resnet_is_the_papers_pre_activation_blocks():
    network = WideResNet(COLOUR, 10, depth=10, width=1).double()
    inputs = torch.randn(2, *COLOUR, dtype=torch.float64)
    torch.testing.assert_close(network(inputs), wide_resnet(network.state_dict(), inputs))


@pytest.mark.parametrize("depth", [4, 15, 17])
def test_impossible_depth_is_refused(depth):
    with pytest.raises(PflError, match=rf"^model\.network\.depth must be 10, 16, 22, 28, \.\.\., got {depth}$"):
        WideResNet(COLOUR, 10, depth)
