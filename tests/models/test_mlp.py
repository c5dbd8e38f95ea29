import pytest
import torch
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP


@pytest.mark.parametrize(
    ("shape", "classes", "hidden", "count"),
    [
        # SRPFL's MLP: 784*512+512 + 512*256+256 + 256*64+64 + 64*10+10
        ((1, 28, 28), 10, (512, 256, 64), 550_346),
        # 784*100+100 + 100*10+10, and 60*20+20 + 20*10+10 (FedMac's DNNs)
        ((1, 28, 28), 10, (100,), 79_510),
        ((60,), 10, (20,), 1_430),
        # 900*512+512 + 131,328 + 256*128+128 + 128*64+64 + 64*5+5 (DePRL, Table 6)
        ((9, 100), 5, (512, 256, 128, 64), 634_117),
        ((4,), 3, (), 15),
    ],
)
def test_parameter_count(shape, classes, hidden, count):
    assert sum(tensor.numel() for tensor in MLP(shape, classes, hidden).parameters()) == count


def test_default_is_the_papers():
    assert [tuple(weight.shape) for name, weight in MLP((1, 28, 28), 10).named_parameters() if "weight" in name] == [
        (512, 784),
        (256, 512),
        (64, 256),
        (10, 64),
    ]


def test_output_is_linear_layers_with_relu_between_them():
    network = MLP((2, 3), 4, (5, 7)).double()
    inputs = torch.randn(8, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = network.state_dict()
    values = inputs.reshape(8, 6)
    for number in (1, 2, 3):
        values = values @ weights[f"fc{number}.weight"].T + weights[f"fc{number}.bias"]
        if number < 3:
            values = values.clamp(min=0)
    torch.testing.assert_close(network(inputs), values)


def test_harbox_network_has_dropout_behind_the_first_three_hidden_layers():
    # DePRL, Table 6
    network = MLP((9, 100), 5, (512, 256, 128, 64), (0.05, 0.05, 0.05))
    layers = list(network.named_children())
    places = [place for place, (_, layer) in enumerate(layers) if isinstance(layer, nn.Dropout)]
    neighbours = [(layers[place - 1][0], layers[place + 1][0]) for place in places]
    assert neighbours == [("relu1", "fc2"), ("relu2", "fc3"), ("relu3", "fc4")]
    assert [layers[place][1].p for place in places] == [0.05, 0.05, 0.05]
    assert sum(network.state_dict()[name].numel() for name in network.cut(1)[1]) == 64 * 5 + 5


def test_each_dropout_has_its_own_place_and_probability():
    layers = dict(MLP((4,), 3, (5, 6, 7), (0.0, 0.3)).named_children())
    assert {name: layer.p for name, layer in layers.items() if isinstance(layer, nn.Dropout)} == {"dropout3": 0.3}


def test_more_dropouts_than_hidden_layers_are_refused():
    with pytest.raises(PflError, match=r"^model\.network: MLP .* \(1\); there are 2$"):
        MLP((4,), 3, (5,), (0.1, 0.1))
