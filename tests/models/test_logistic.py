import pytest
import torch

from pfl_lightning.models import LogisticRegression


@pytest.mark.parametrize(
    ("shape", "classes", "bias", "count"),
    [
        ((1, 28, 28), 10, True, 7_850),  # 784*10 + 10 (FedMac's MLR)
        ((60,), 10, True, 610),
        ((1, 28, 28), 62, False, 48_608),  # 784*62 (Delta-FL's linear model)
    ],
)
def test_parameter_count(shape, classes, bias, count):
    network = LogisticRegression(shape, classes, bias)
    assert sum(tensor.numel() for tensor in network.parameters()) == count


def test_output_is_one_linear_layer():
    network = LogisticRegression((2, 2), 3).double()
    inputs = torch.arange(8.0, dtype=torch.float64).view(2, 2, 2)
    weights = network.state_dict()
    torch.testing.assert_close(network(inputs), inputs.reshape(2, 4) @ weights["fc.weight"].T + weights["fc.bias"])
