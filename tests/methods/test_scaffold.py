from functools import partial

import pytest
from fakes.loops import plain_rounds
from fakes.methods import built, distance, row, rows
from plain_methods import PlainScaffold
from torch.optim.lr_scheduler import LambdaLR

from pfl_lightning.methods import SCAFFOLD, FedAvg
from pfl_lightning.server import SecureAggregator
from pfl_lightning.tree import zeros_like

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(
    ("aggregator", "test_clients", "clients"),
    [(None, 0.0, 6), (SecureAggregator(limit=100.0), 0.0, 6), (None, 0.3, 4)],
    ids=["clear", "secure", "others never train"],
)
def test_three_rounds_of_some_of_the_clients_are_a_plain_loop(aggregator, test_clients, clients, pool_of, fit):
    data = pool_of(3, test_clients=test_clients)
    rates = {"epochs": 2, "lr_decay": 0.5}
    method = built(SCAFFOLD, data, **rates, weight_decay=0.0, aggregator=aggregator)
    plain = plain_rounds(PlainScaffold, method, data, 3, **rates)
    fit(method, data, 3, bare=True)
    tolerance = 1e-10 if aggregator is None else 1e-9
    assert len(plain.states) == clients
    assert max(tensor.abs().max() for tensor in plain.server.values()) > 0.01
    assert distance(plain.network, method.network) < tolerance
    assert distance(plain.server, method.server.tree) < tolerance
    for client in range(6):
        expected = plain.states.get(client) or zeros_like(row(method, client))
        assert distance(expected, row(method, client)) < tolerance


def test_with_control_variates_of_zero_it_is_fedavg_with_equal_weights(train):
    first = train(SCAFFOLD, 1, hidden=(40, 5))
    assert distance(train(FedAvg, 1, hidden=(40, 5), weighting="uniform").network, first.network) < 1e-12
    assert "dual" in "".join(first.engine.choices.values())


def test_a_round_without_a_rate_leaves_everything_as_it_was(train):
    schedule = partial(LambdaLR, lr_lambda=lambda rounds: float(rounds == 0))
    one, two = (train(partial(SCAFFOLD, lr_schedule=schedule), rounds) for rounds in (1, 2))
    assert distance(one.network, two.network) < 1e-15
    assert distance(one.server.tree, two.server.tree) == 0
    assert distance(rows(one), rows(two)) == 0
