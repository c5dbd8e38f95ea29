from functools import partial
from itertools import chain

import pytest
import torch
from fakes.loops import batches
from fakes.methods import built, distance, rows, tensors, weighted_mean
from torch.func import functional_call, grad
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedDBE
from pfl_lightning.models import MLP, ConvNet, LogisticRegression
from pfl_lightning.server import SecureAggregator
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")

MEAN = "fc3.personal_mean"


@pytest.mark.parametrize("aggregator", [None, SecureAggregator(limit=100.0)], ids=["clear", "secure"])
def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=3))
    method = built(partial(FedDBE, strength=20.0), data, weight_decay=0.0, epochs=2, aggregator=aggregator)
    plain = MLP(data.input_shape, data.num_classes, hidden=(8, 5))
    head, body = plain.fc3, torch.nn.Sequential(*list(plain.children())[:-1])
    shared = {name: tensor for name, tensor in tensors(method.network).items() if name != MEAN}
    means, consensus = [torch.zeros(5)] * 6, None

    def features(model, inputs):
        return functional_call(body, dict(zip(body.state_dict(), model.values(), strict=False)), inputs)

    fit(method, data, 3, bare=True)
    for index in range(3):
        examples, models, found = data.make_round(index).examples, [], []
        for row, client in enumerate(examples.ids.tolist()):
            own = examples.rows(row, row + 1)
            model = {**shared, MEAN: means[client]}
            for inputs, targets in chain(*batches(own, (1, "train", index, "all"), epochs=2)):

                def loss(model, inputs=inputs, targets=targets, consensus=consensus):
                    z = features(model, inputs)
                    last = {"weight": model["fc3.weight"], "bias": model["fc3.bias"]}
                    outputs = functional_call(head, last, z + model[MEAN])
                    term = 0.0 if consensus is None else (z.mean(0) - consensus).square().mean()
                    return F.cross_entropy(outputs, targets) + 10.0 * term

                slopes = grad(loss)(model)
                model = {name: tensor - 0.1 * slopes[name] for name, tensor in model.items()}
            means[client] = model.pop(MEAN)
            models.append(model)
            found.append(features(model, own.gather(own.positions)[0]).mean(0))
        shared = weighted_mean(models, examples.counts)
        if consensus is None:
            consensus = weighted_mean([{"": mean} for mean in found], examples.counts)[""]
    assert distance(shared, method.network) < 1e-9
    assert (method.server.tree["consensus"] - consensus).abs().max() < 1e-9
    assert distance({MEAN: torch.stack(means)}, rows(method)) < 1e-9
    assert torch.stack(means).abs().max() > 1e-3


class Still(FedDBE):
    """Personal means stay at zero."""

    trains = "fc*[st]"  # weights and biases


def test_without_the_term_and_with_means_of_zero_it_is_fedavg(train):
    still, fedavg = train(partial(Still, strength=0.0), 3), train(FedAvg, 3)
    assert distance(fedavg.network, still.network) < 1e-12
    assert distance(fedavg.network, train(partial(Still, strength=50.0), 3).network) > 1e-3


@pytest.mark.parametrize(("rounds", "sent"), [(1, 5), (3, 0)])
def test_a_client_sends_its_mean_features_once_and_keeps_its_own(rounds, sent, train):
    dbe, fedavg = (train(make, rounds).accounting.ledger for make in (FedDBE, FedAvg))
    assert dbe.up - fedavg.up == 6 * 64 * sent, "in the last round"
    assert dbe.down - fedavg.down == 6 * 64 * 5, "the consensus"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"network": LogisticRegression}, "model.network: this head .* has no features; allowed: a body"),
        ({"network": partial(ConvNet, channels=(3, 4)), "head": 2}, "model.head: conv2.weight is not possible"),
    ],
)
def test_a_head_that_has_no_features_or_is_not_linear_is_one_line(options, line, ragged_data):
    with pytest.raises(PflError, match=f"^{line}"):
        built(FedDBE, ragged_data(), **options)
