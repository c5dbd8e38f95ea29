import torch

from pfl_lightning.models import LogisticRegression


def test_output_is_one_linear_layer():
    network = LogisticRegression((2, 2), 3).double()
    inputs = torch.arange(8.0, dtype=torch.float64).view(2, 2, 2)
    weights = network.state_dict()
    torch.testing.assert_close(network(inputs), inputs.reshape(2, 4) @ weights["fc.weight"].T + weights["fc.bias"])
