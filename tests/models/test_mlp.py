import pytest
import torch

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP


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


def test_more_dropouts_than_hidden_layers_are_refused():
    with pytest.raises(PflError, match=r"^model\.network: MLP .* \(1\), got 2$"):
        MLP((4,), 3, (5,), (0.1, 0.1))
