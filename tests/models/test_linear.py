import torch

from pfl_lightning.models import LinearNetwork


def test_output_is_the_head_of_the_body():
    network = LinearNetwork((3,), 1).double()
    inputs = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    weights = network.state_dict()
    torch.testing.assert_close(network(inputs), inputs @ weights["body.weight"].T @ weights["head.weight"].T)
