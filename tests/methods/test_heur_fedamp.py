from functools import partial

import pytest
from fakes.methods import distance, rows

from pfl_lightning.methods import HeurFedAMP, Local
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


def test_clients_that_only_listen_to_themselves_train_alone(ragged_data, train):
    data = partial(ragged_data, participation=Participation(pool_size=3))
    alone = train(partial(HeurFedAMP, self_weight=1.0, proximity=0.0), 4, data())
    local = train(Local, 4, data(), weight_decay=0.0)
    assert distance(rows(local), rows(alone)) == 0
