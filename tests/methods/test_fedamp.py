from functools import partial

import pytest
import torch
from fakes.methods import stepping

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAMP
from pfl_lightning.models import LogisticRegression
from pfl_lightning.tasks import Regression

pytestmark = pytest.mark.usefixtures("float64")


def three_clients(sigma, attention_lr):
    method = FedAMP(sigma, attention_lr, network=partial(LogisticRegression, bias=False))
    method.build((2,), Regression().sized(1), 3)
    return method


def test_three_models_are_mixed_as_by_hand():
    """The squared distances of (1, 0), (1, 1), (0, 2) are 1, 5, 2: the weights are exp(-1) / 2 and so on."""
    method = stepping(three_clients(1.0, 0.5))
    models = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    method.clients.stack("fc.weight").copy_(models[:, None])
    method.server_update({}, None)
    weights = torch.tensor(
        [
            [0.8126913059, 0.1839397206, 0.0033689735],
            [0.1839397206, 0.7483926378, 0.0676676416],
            [0.0033689735, 0.0676676416, 0.9289633849],
        ]
    )
    mixed = method.clients.stack("cloud.fc.weight")[:, 0]
    torch.testing.assert_close(mixed, weights @ models, atol=1e-9, rtol=0)


def test_a_rate_that_could_make_a_weight_negative_is_refused():
    three_clients(0.3, 0.15)
    line = (
        "model.attention_lr: 0.2 is not possible with sigma 0.3 and 3 clients, whose own weights could be negative; "
        r"allowed: up to sigma / \(clients - 1\), 0.15"
    )
    with pytest.raises(PflError, match=f"^{line}$"):
        three_clients(0.3, 0.2)


def test_the_rate_is_no_concern_of_new_clients():
    method = three_clients(0.3, 0.15)
    assert len(method.initial_state({"fc.weight": torch.zeros(1, 2)}, 20, seed=0)["cloud.fc.weight"]) == 20
