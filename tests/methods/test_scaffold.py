from functools import partial

import pytest
import torch
from fakes.loops import participants, trained
from fakes.methods import built, distance, rows, tensors
from torch.optim.lr_scheduler import LambdaLR

from pfl_lightning.methods import SCAFFOLD, FedAvg
from pfl_lightning.server import SecureAggregator

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(
    ("aggregator", "test_clients", "clients"),
    [(None, 0.0, 6), (SecureAggregator(limit=100.0), 0.0, 6), (None, 0.3, 4)],
    ids=["clear", "secure", "others never train"],
)
def test_three_rounds_of_some_of_the_clients_are_a_plain_loop(aggregator, test_clients, clients, pool_of, fit):
    data = pool_of(3, test_clients=test_clients)
    method = built(SCAFFOLD, data, epochs=2, weight_decay=0.0, aggregator=aggregator)
    shared = tensors(method.network)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in shared.items()}
    server, controls = dict(zeros), [dict(zeros) for _ in range(6)]
    fit(method, data, 3, bare=True)
    for index in range(3):
        models, changes = [], []
        for client, own in participants(data, index):
            control = controls[client]

            def penalty(moving, server=server, control=control):
                return sum(((server[name] - control[name]) * moving[name]).sum() for name in moving)

            model, _ = trained(method.network, shared, own, (1, "train", index, "all"), epochs=2, penalty=penalty)
            steps = 2 * -(-int(own.counts) // 4)
            new = {n: control[n] - server[n] + (shared[n] - model[n]) / (steps * 0.1) for n in model}
            changes.append({name: new[name] - control[name] for name in new})
            controls[client] = new
            models.append(model)
        shared = {name: sum(model[name] for model in models) / 3 for name in shared}
        server = {name: server[name] + 3 / clients * sum(change[name] for change in changes) / 3 for name in server}
    tolerance = 1e-10 if aggregator is None else 1e-9
    assert max(tensor.abs().max() for tensor in server.values()) > 0.01
    assert distance(shared, method.network) < tolerance
    assert distance(server, method.server.tree) < tolerance
    for name, stack in rows(method, "control.").items():
        assert (stack - torch.stack([control[name] for control in controls])).abs().max() < tolerance


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
