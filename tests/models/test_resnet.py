import torch
from torch import nn
from torchvision.models import resnet18

from pfl_lightning.models import ResNet18

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
