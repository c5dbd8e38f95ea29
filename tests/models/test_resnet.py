import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from pfl_lightning.errors import PflError
from pfl_lightning.models import ResNet18

COLOUR = (3, 32, 32)


# the head has 512*classes + classes; the body 11,168,832
@pytest.mark.parametrize(("classes", "count", "head"), [(100, 11_220_132, 51_300), (10, 11_173_962, 5_130)])
def test_parameter_counts_of_network_and_head(classes, count, head):
    with torch.device("meta"):
        network = ResNet18(COLOUR, classes)
    sizes = {name: tensor.numel() for name, tensor in network.named_parameters()}
    assert sum(sizes.values()) == count
    assert sum(sizes[name] for name in network.cut(1)[1]) == head


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


@pytest.mark.parametrize("shape", [(1, 9, 9), (1, 28, 28)])
def test_one_image_is_enough_for_training(shape):
    assert ResNet18(shape, 10).train()(torch.zeros(1, *shape)).shape == (1, 10)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 8), (784,), (1, 3, 32, 32)])
def test_too_small_images_are_refused(shape):
    with pytest.raises(PflError, match=r"^model\.network: ResNet18 .* 9 x 9; .*"):
        ResNet18(shape, 10)
