import pytest
import torch

from pfl_lightning.models.linear import LinearNetwork


@pytest.mark.parametrize(
    ("shape", "classes", "rank", "count"),
    [
        ((20,), 1, 2, 42),  # 20*2 + 2*1
        ((1, 4, 5), 10, 3, 90),  # 20*3 + 3*10
        ((20,), 2, 2, 42),  # two classes have one output
    ],
)
def test_parameter_count(shape, classes, rank, count):
    network = LinearNetwork(shape, classes, rank)
    assert sum(tensor.numel() for tensor in network.parameters()) == count


def test_output_is_the_head_of_the_body():
    network = LinearNetwork((3,), 1).double()
    inputs = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    weights = network.state_dict()
    torch.testing.assert_close(network(inputs), inputs @ weights["body.weight"].T @ weights["head.weight"].T)


def test_last_layer_is_the_head():
    assert LinearNetwork((3,), 1).cut(1) == ({"body.weight"}, {"head.weight"})
