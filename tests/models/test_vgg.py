import pytest
import torch
import yaml
from torch import nn
from torchvision.models.vgg import cfgs, make_layers

from pfl_lightning.cli import main
from pfl_lightning.errors import PflError
from pfl_lightning.models import VGG

COLOUR = (3, 32, 32)
TABLE4 = [64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, "M"]
SMALL = [16, "M", 32, "M", 64, "M", 128, "M", 128, "M"]


@pytest.mark.parametrize(
    ("options", "count", "head"),
    [
        # convolutions 9*inputs*outputs + outputs: 9,220,480; 512*512+512 twice; 512*10+10 (DePRL's VGG-11)
        ({}, 9_750_922, 5_130),
        ({"convolutions": TABLE4}, 7_538_698, 5_130),  # convolutions: 7,008,256
        # convolutions 245,024, BatchNorm 2*(16+32+64+128+128), 128*512+512, 512*512+512 (FedMac)
        ({"convolutions": SMALL, "batch_norm": True}, 579_594, 5_130),
    ],
    ids=["VGG-11", "Table 4", "small"],
)
def test_parameter_counts_of_network_and_head(options, count, head):
    with torch.device("meta"):
        network = VGG(COLOUR, 10, **options)
    sizes = {name: tensor.numel() for name, tensor in network.named_parameters()}
    assert sum(sizes.values()) == count
    assert sum(sizes[name] for name in network.cut(1)[1]) == head


@pytest.mark.parametrize(
    ("convolutions", "options"),
    [(cfgs["A"], {}), ([4, "M", 6, 8, "M"], {"convolutions": [4, "M", 6, 8, "M"], "batch_norm": True})],
    ids=["VGG-11", "BatchNorm"],
)
def test_output_is_torchvisions_convolutions_and_linear_layers(convolutions, options):
    network = VGG(COLOUR, 10, hidden=(7, 5), dropout=0.0, **options)
    features = network.fc1.in_features
    linear = [nn.Flatten(), nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 10)]
    reference = nn.Sequential(make_layers(convolutions, batch_norm=bool(options)), *linear)
    weights = zip(reference.state_dict(), network.state_dict().values(), strict=True)
    reference.load_state_dict(dict(weights))
    inputs = torch.randn(2, *COLOUR, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(inputs), reference(inputs))


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 4, 11)])
def test_any_image_that_survives_the_poolings_suits(shape):
    assert VGG(shape, 3, [4, "M", 5, "M"], (6, 7))(torch.zeros(2, *shape)).shape == (2, 3)


def test_dropout_is_before_the_first_and_before_the_last_linear_layer():
    layers = list(VGG(COLOUR, 10).named_children())
    places = [place for place, (_, layer) in enumerate(layers) if isinstance(layer, nn.Dropout)]
    assert [(layers[place - 1][0], layers[place + 1][0]) for place in places] == [("flatten", "fc1"), ("relu10", "fc3")]
    assert [layers[place][1].p for place in places] == [0.2, 0.2]
    assert not any(isinstance(layer, nn.Dropout) for layer in VGG(COLOUR, 10, dropout=0.0))


def test_convolutions_start_with_the_papers_spread_and_no_bias():
    torch.manual_seed(0)
    layer = VGG((256, 2, 2), 10, [128, "M"]).conv1
    assert layer.weight.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.01)  # 294,912 draws: 0.1% sd
    assert abs(layer.weight.mean().item()) < 0.001  # sd of the mean: 0.00008
    assert not layer.bias.any()


@pytest.mark.parametrize("shape", [(3, 31, 32), (1, 28, 28), (784,), (1, 3, 32, 32)])
def test_too_small_images_are_refused(shape):
    with pytest.raises(PflError, match=r"^model\.network: VGG .* 32 x 32; .*"):
        VGG(shape, 10)


def test_nothing_of_the_default_network_carries_over_to_vgg_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--model=FedRep", "--model.network=VGG", "--print_config"])
    options = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["network"]["init_args"]
    with torch.device("meta"):
        network, default = VGG(COLOUR, 10, **options), VGG(COLOUR, 10)
    assert str(network) == str(default)
