import pytest
import torch
import yaml
from fakes.references import linear_layers
from torch import nn
from torch.nn import functional as F
from torchvision.models.vgg import cfgs, make_layers

from pfl_lightning.cli import main
from pfl_lightning.models import VGG, AlexNet

COLOUR = (3, 32, 32)


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


def test_leafs_network_for_celeba_has_one_linear_layer():
    network = VGG((3, 84, 84), 2, [32, "M"] * 4, hidden=(), dropout=0.0, batch_norm=True).eval()
    # four poolings of 84 pixels leave 5; per block a convolution (9 or 27 inputs a channel), a bias and BatchNorm's two
    sizes = [(9 * inputs + 3) * 32 for inputs in (3, 32, 32, 32)]
    assert sum(weights.numel() for weights in network.parameters()) == sum(sizes) + (32 * 5 * 5 + 1) * 2
    inputs = torch.randn(2, 3, 84, 84, generator=torch.Generator().manual_seed(0))
    values = inputs
    for number in range(1, 5):
        convolved = network.get_submodule(f"conv{number}")(values)
        values = F.max_pool2d(network.get_submodule(f"norm{number}")(convolved), 2).relu()
    torch.testing.assert_close(network(inputs), network.get_submodule("fc1")(values.flatten(1)))


def test_convolutions_start_with_the_papers_spread_and_no_bias():
    torch.manual_seed(0)
    layer = VGG((256, 2, 2), 10, [128, "M"]).conv1
    assert layer.weight.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.01)  # 294,912 draws: 0.1% sd
    assert abs(layer.weight.mean().item()) < 0.001  # sd of the mean: 0.00008
    assert not layer.bias.any()


@pytest.mark.slow
def test_nothing_of_the_default_network_carries_over_to_vgg_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--model=FedRep", "--model.network=VGG", "--print_config"])
    options = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["network"]["init_args"]
    with torch.device("meta"):
        network, default = VGG(COLOUR, 10, **options), VGG(COLOUR, 10)
    assert str(network) == str(default)


def alexnet(weights, values):
    """DePRL's Table 5, written out."""
    for number in range(1, 6):
        layer = (weights[f"conv{number}.weight"], weights[f"conv{number}.bias"])
        values = F.conv2d(values, *layer, stride=2 if number == 1 else 1, padding=1).clamp(min=0)
        values = F.max_pool2d(values, 2) if number in (1, 2, 5) else values
    return linear_layers(weights, values, ["fc1", "fc2", "fc3"])


@pytest.mark.parametrize("shape", [(1, 32, 32), (1, 28, 28), (3, 15, 47)])
def test_output_of_alexnet_is_the_papers_layers(shape):
    network = AlexNet(shape, 10).double().eval()
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    torch.testing.assert_close(network(inputs), alexnet(network.state_dict(), inputs))
