from functools import partial

import pytest
import torch
from fakes.loops import participants, pull, trained
from fakes.methods import built, distance, make_method, tensors
from fakes.quadratics import Quadratics, built_at, network, point

from pfl_lightning.methods import FedAvg, FedDyn

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(("test_clients", "clients"), [(0.0, 6), (0.3, 4)])
def test_three_rounds_of_some_of_the_clients_are_a_plain_loop(test_clients, clients, pool_of, fit):
    data = pool_of(3, test_clients=test_clients)
    method = built(partial(FedDyn, alpha=0.3), data, epochs=2, weight_decay=0.0)
    shared = tensors(method.network)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in shared.items()}
    server, gradients = dict(zeros), [dict(zeros) for _ in range(6)]  # the paper's h and h_i
    fit(method, data, 3, bare=True)
    for index in range(3):
        models = []
        for client, own in participants(data, index):

            def penalty(moving, slope=gradients[client], anchor=shared):
                return pull(0.3, anchor)(moving) - sum((slope[name] * moving[name]).sum() for name in moving)

            model, _ = trained(method.network, shared, own, (1, "train", index, "all"), epochs=2, penalty=penalty)
            gradients[client] = {n: gradients[client][n] - 0.3 * (model[n] - shared[n]) for n in model}
            models.append(model)
        server = {n: server[n] - 0.3 / clients * sum(model[n] - shared[n] for model in models) for n in server}
        shared = {n: sum(model[n] for model in models) / 3 - server[n] / 0.3 for n in shared}
    assert max(tensor.abs().max() for tensor in server.values()) > 0.01
    assert distance(shared, method.network) < 1e-10


@pytest.mark.slow
def test_many_steps_end_at_the_optimum_of_unlike_clients(fit):
    """Two parabolas of curvature 1 and 3 around 0 and 1: the sum has its minimum at 3/4, FedAvg stays at 1/2."""
    ends = {}
    for make, rounds in ((partial(FedDyn, alpha=0.5), 60), (partial(FedAvg, weighting="uniform"), 10)):
        data = Quadratics([[0.0], [1.0]], curvature=[1.0, 3.0])
        options = {"network": network, "lr": 0.1, "epochs": 40}
        method = built_at(make_method(make, batch_size=9, weight_decay=0.0, eval_epochs=0, **options), data, [0.2])
        fit(method, data, rounds, bare=True)
        ends[type(method)] = point(method)[0]
    assert ends[FedDyn] == pytest.approx(0.75, abs=1e-6)
    assert ends[FedAvg] == pytest.approx(0.5, abs=0.01)
