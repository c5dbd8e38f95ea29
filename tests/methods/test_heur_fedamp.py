from functools import partial

import pytest
import torch
from fakes.methods import distance, rows, stepping

from pfl_lightning.methods import HeurFedAMP, Local
from pfl_lightning.models import LogisticRegression
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


def test_three_models_are_mixed_as_by_hand():
    """The cosines of (1, 0), (1, 1), (0, 2) are 1/sqrt(2), 0, 1/sqrt(2); the second one is as similar to both others.

    The first row is 0.4 and 0.6 times the softmax of (sqrt(2), 0), where sqrt(2) = sigma / sqrt(2): 0.4827 and 0.1173.
    """
    method = HeurFedAMP(self_weight=0.4, sigma=2.0, network=partial(LogisticRegression, bias=False))
    method.build((2,), 1, 3)
    stepping(method)
    method.clients.stack("fc.weight").copy_(torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]], [[0.0, 2.0]]]))
    method.server_update({}, None)
    mixed = torch.tensor([[0.8826578095, 0.7173421905], [0.7, 1.0], [0.6, 1.2826578095]])
    torch.testing.assert_close(method.clients.stack("cloud.fc.weight")[:, 0], mixed, atol=1e-10, rtol=0)
    torch.testing.assert_close(method.network.fc.weight.data, torch.tensor([[2 / 3, 1.0]]))


def test_clients_that_only_listen_to_themselves_train_alone(ragged_data, train):
    data = partial(ragged_data, participation=Participation(pool_size=3))
    alone = train(partial(HeurFedAMP, self_weight=1.0, proximity=0.0), 4, data())
    local = train(Local, 4, data(), weight_decay=0.0)
    assert distance(rows(local), rows(alone)) == 0
