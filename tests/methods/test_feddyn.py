from functools import partial

import pytest
import torch
from fakes.loops import pull, trained
from fakes.methods import built, distance, tensors
from fakes.quadratics import Quadratics, built_at, network, point

from pfl_lightning.methods import FedAvg, FedDyn
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(("test_clients", "clients"), [(0.0, 6), (0.3, 4)])
def test_three_rounds_of_some_of_the_clients_are_a_plain_loop(test_clients, clients, ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=3), test_clients=test_clients)
    method = built(partial(FedDyn, alpha=0.3), data, epochs=2, weight_decay=0.0)
    shared = tensors(method.network)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in shared.items()}
    server, gradients = dict(zeros), [dict(zeros) for _ in range(6)]  # the paper's h and h_i
    fit(method, data, 3, bare=True)
    for index in range(3):
        examples, models = data.make_round(index).examples, []
        for row, client in enumerate(examples.ids.tolist()):

            def penalty(moving, slope=gradients[client], anchor=shared):
                return pull(0.3, anchor)(moving) - sum((slope[name] * moving[name]).sum() for name in moving)

            own, key = examples.rows(row, row + 1), (1, "train", index, "all")
            model, _ = trained(method.network, shared, shared, own, key, lr=0.1, epochs=2, penalty=penalty)
            gradients[client] = {n: gradients[client][n] - 0.3 * (model[n] - shared[n]) for n in model}
            models.append(model)
        server = {n: server[n] - 0.3 / clients * sum(model[n] - shared[n] for model in models) for n in server}
        shared = {n: sum(model[n] for model in models) / 3 - server[n] / 0.3 for n in shared}
    assert max(tensor.abs().max() for tensor in server.values()) > 0.01
    assert distance(shared, method.network) < 1e-10


def test_without_a_regularizer_it_is_fedavg_with_equal_weights(train):
    methods = train(FedAvg, 2, weighting="uniform"), train(partial(FedDyn, alpha=0.0), 2)
    assert distance(methods[0].network, methods[1].network) == 0


@pytest.mark.slow
def test_many_steps_end_at_the_optimum_of_unlike_clients(fit):
    """Two parabolas of curvature 1 and 3 around 0 and 1: the sum has its minimum at 3/4, FedAvg stays at 1/2."""
    ends = {}
    for make, rounds in ((partial(FedDyn, alpha=0.5), 60), (partial(FedAvg, weighting="uniform"), 10)):
        data = Quadratics([[0.0], [1.0]], curvature=[1.0, 3.0])
        options = {"network": network, "lr": 0.1, "epochs": 40}
        method = built_at(make(batch_size=9, weight_decay=0.0, eval_epochs=0, **options), data, [0.2])
        fit(method, data, rounds, bare=True)
        ends[type(method)] = point(method)[0]
    assert ends[FedDyn] == pytest.approx(0.75, abs=1e-6)
    assert ends[FedAvg] == pytest.approx(0.5, abs=0.01)
