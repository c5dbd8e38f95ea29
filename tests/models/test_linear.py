import pytest
import torch
from fakes.references import linear_layers

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, LinearNetwork, LogisticRegression


@pytest.mark.parametrize(
    ("network", "reference"),
    [
        (LinearNetwork((2, 3), 1), lambda w, x: x.flatten(1) @ w["body.weight"].T @ w["head.weight"].T),
        (LogisticRegression((2, 3), 3), lambda w, x: x.flatten(1) @ w["fc.weight"].T + w["fc.bias"]),
        (MLP((2, 3), 4, (5, 7)), lambda w, x: linear_layers(w, x, ["fc1", "fc2", "fc3"])),
    ],
)
def test_output_is_that_of_the_layers_written_out(network, reference):
    inputs = torch.randn(8, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(network.double()(inputs), reference(network.state_dict(), inputs))


def test_more_dropouts_than_hidden_layers_are_refused():
    with pytest.raises(PflError, match=r"^model\.network: MLP .* \(1\), got 2$"):
        MLP((4,), 3, (5,), (0.1, 0.1))
