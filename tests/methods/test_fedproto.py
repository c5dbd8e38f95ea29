from functools import partial
from itertools import chain

import pytest
import torch
from fakes.loops import batches
from fakes.methods import built, distance, rows, tensors
from fakes.quadratics import Quadratics
from torch.func import functional_call, grad
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedProto, Local
from pfl_lightning.models import ConvNet
from pfl_lightning.server import SecureAggregator
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("aggregator", [None, SecureAggregator(limit=100.0)], ids=["clear", "secure"])
def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=3))
    method = built(partial(FedProto, strength=0.7), data, weight_decay=0.0, aggregator=aggregator)
    body, start = torch.nn.Sequential(*list(method.network.children())[:-1]), tensors(method.network)
    models, prototypes = [start] * 6, {}

    def features(model, inputs):
        return functional_call(body, {name: model[_long(method, name)] for name in body.state_dict()}, inputs)

    fit(method, data, 3, bare=True)
    for index in range(3):
        examples, seen = data.make_round(index).examples, []
        for row, client in enumerate(examples.ids.tolist()):
            own, model = examples.rows(row, row + 1), models[client]
            for inputs, targets in chain(*batches(own, (1, "train", index, "all"))):

                def loss(tensors, inputs=inputs, targets=targets, known=prototypes):
                    found = features(tensors, inputs)
                    near = [
                        (z - known[y]).square().mean() if y in known else torch.zeros(())
                        for z, y in zip(found, targets.tolist(), strict=True)
                    ]
                    outputs = functional_call(method.network, tensors, inputs)
                    return F.cross_entropy(outputs, targets) + 0.7 * torch.stack(near).mean()

                slopes = grad(loss)(model)
                model = {name: tensor - 0.1 * slopes[name] for name, tensor in model.items()}
            models[client] = model
            inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0].tolist()
            seen += zip(features(model, inputs), targets, strict=True)
        classes = {label for _, label in seen}
        means = {y: torch.stack([z for z, label in seen if label == y]).mean(0) for y in classes}
        prototypes = prototypes | means
    for client, model in enumerate(models):
        assert distance(model, {name: stack[client] for name, stack in rows(method).items()}) < 1e-9
    for label, prototype in prototypes.items():
        assert (method.server.tree["prototypes"][label] - prototype).abs().max() < 1e-9
    assert distance(start, method.network) == 0


def _long(method, name):
    """The network's name of a tensor of its first layers."""
    layer, _, rest = name.partition(".")
    return f"{list(dict(method.network.named_children()))[int(layer)]}.{rest}"


def test_without_the_term_it_is_local(train):
    proto, local = train(partial(FedProto, strength=0.0), 2), train(Local, 2)
    assert all(torch.equal(rows(proto)[name], stack) for name, stack in rows(local).items())


def test_prototypes_are_of_all_classes_where_the_head_has_several_layers(ragged_data, fit):
    data = ragged_data()
    method = built(FedProto, data, hidden=(8, 2), head=2)
    fit(method, data, 1, bare=True)
    assert method.server.tree["prototypes"].shape == (3, 8)


@pytest.mark.parametrize(
    ("data", "options", "line"),
    [
        (partial(Quadratics, [[1.0, 2.0]]), {}, "model: FedProto is not possible for a regression"),
        (None, {"network": partial(ConvNet, channels=(3, 4)), "head": 2}, "model.head: conv2.weight is not possible"),
    ],
)
def test_what_has_no_prototypes_is_one_line(data, options, line, ragged_data):
    with pytest.raises(PflError, match=f"^{line}"):
        built(FedProto, (data or ragged_data)(), **options)


def test_a_client_sends_a_prototype_and_a_count_for_each_class(train):
    ledger = train(FedProto, 1).accounting.ledger
    assert ledger.up == 6 * 64 * (3 * 5 + 3 + 1)
    assert ledger.down == 6 * 64 * (3 * 5 + 3)


def test_what_a_server_does_with_models_is_no_option_where_none_is_sent():
    with pytest.raises(TypeError, match="server_optimizer"):
        FedProto(server_optimizer=torch.optim.Adam)
