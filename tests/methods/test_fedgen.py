from functools import partial

import pytest
import torch
from fakes.loops import descended_at, features, participants
from fakes.methods import assert_shared, built, distance, row, rows, stepping, tensors, weighted_mean
from plain_methods import samples_of
from torch import nn
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedGen, LGFedAvg
from pfl_lightning.methods.fedgen import companions_of
from pfl_lightning.seeding import random_bits, seed_of
from pfl_lightning.system import Participation
from pfl_lightning.tree import Params

pytestmark = pytest.mark.usefixtures("float64")

SMALL = partial(FedGen, noise=3, hidden=7, generator_steps=4, generator_lr=0.05, generator_batch=6)


def cross_entropy(outputs, targets):
    """The loss of classes, of which two have one output."""
    return F.cross_entropy(F.pad(outputs, (1, 0)) if outputs.shape[1] == 1 else outputs, targets)


def generator_of(method):
    """The generator as modules."""
    layers = Params(method.server.tree, {}).under("generator").shared
    noise_and_classes, hidden, width = layers["fc1.weight"].shape[1], *layers["fc2.weight"].T.shape
    first, norm, last = nn.Linear(noise_and_classes, hidden), nn.LayerNorm(hidden), nn.Linear(hidden, width)
    for module, name in ((first, "fc1"), (norm, "norm"), (last, "fc2")):
        module.load_state_dict({kind: layers[f"{name}.{kind}"] for kind in ("weight", "bias")})
    return nn.Sequential(first, norm, nn.ReLU(), last)


def made(generator, noise, labels, classes):
    """Features of some labels."""
    return generator(torch.cat([noise, torch.eye(classes)[labels]], dim=1))


def head_of(model, hidden):
    """Outputs of the head."""
    return F.linear(hidden, model["fc3.weight"], model["fc3.bias"])


@pytest.fixture
def data_of(ragged_data):
    """Makes ragged data with so many classes, of which the last ones may be nobody's."""

    def make(classes, **options):
        class Data(ragged_data):
            num_classes = classes

            def load(self):
                return [data._replace(targets=data.targets.clamp(max=classes - 1)) for data in super().load()]

        return Data(**options)

    return make


@pytest.fixture(params=[3, 2], ids=["three classes", "two"])
def classes(request):
    return request.param


def test_the_generator_learns_what_the_mean_of_the_clients_outputs_says(ragged_data, monkeypatch):
    data = ragged_data()
    data.setup()
    method = stepping(built(partial(SMALL, generator_steps=1), data))
    biases = [torch.tensor([4.0, 0.0, -99.0]), torch.tensor([0.0, 4.0, -99.0])]
    heads = [{"fc3.weight": torch.zeros(3, 5), "fc3.bias": bias} for bias in biases]
    found, losses = [], method.sample_losses
    monkeypatch.setattr(method, "sample_losses", lambda *given: found.append(losses(*given)) or found[-1])
    mean = weighted_mean(heads, torch.tensor([30, 10]))
    method.server_update({**mean, "class_shares": torch.tensor([1.0, 0.0, 0.0])}, data.make_round(0))
    torch.testing.assert_close(found[0], torch.full((6,), 0.126928), rtol=0, atol=1e-6)


def test_the_server_trains_like_a_plain_loop_over_modules_and_heads(data_of, classes):
    data = data_of(classes)
    data.setup()
    method = stepping(built(SMALL, data))
    generator = generator_of(method)
    outputs, shares = len(method.network.fc3.bias), torch.tensor([0.0, 0.3, 0.7][-classes:])
    heads = [{"fc3.weight": torch.randn(outputs, 5), "fc3.bias": torch.randn(outputs)} for _ in range(3)]
    counts, batch = torch.tensor([5, 1, 4]), data.make_round(0)
    mean = weighted_mean(heads, counts)
    source = torch.Generator().manual_seed(seed_of(batch.seed, "generator", 0))
    optimizer = torch.optim.Adam(generator.parameters(), lr=0.05)
    for _ in range(4):
        labels = torch.multinomial(shares, 6, replacement=True, generator=source)
        hidden = made(generator, torch.rand(6, 3, generator=source), labels, classes)
        logits = sum(count / 10 * head_of(head, hidden) for head, count in zip(heads, counts, strict=True))
        optimizer.zero_grad()
        cross_entropy(logits, labels).backward()
        optimizer.step()
    method.server_update({**mean, "class_shares": shares}, batch)
    found, expected = (tensors(each) for each in (generator_of(method), generator))
    assert distance(found, expected) < 1e-12
    assert distance(mean, tensors(method.network)) < 1e-12
    method.server_update({**mean, "class_shares": shares}, data.make_round(1))
    torch.testing.assert_close(method.server.tree["class_shares"], 2 * shares)


def test_a_round_is_a_plain_loop_over_samples_and_their_companions(data_of, fit, backend, classes):
    data = data_of(classes, val_fraction=0.0, participation=Participation(pool_size=4))
    method = built(partial(SMALL, strength=0.7), data, weight_decay=0.0, backend=backend, epochs=2)
    data.setup()
    counts = torch.stack([own.class_counts(classes)[0] for _, own in participants(data, 0)])
    method.server.tree["class_shares"].copy_(counts.sum(0) / counts.sum())  # as if a round had been before
    start, bodies = tensors(method.network), rows(method)
    generator, ends = generator_of(method), method.server.tree["class_shares"].cumsum(0)

    def plainly(client, own):
        model = {**start, **{name: stack[client] for name, stack in bodies.items()}}
        (inputs, targets), count, key = samples_of(own), own.longest, (1, "train", 0)
        drawn = (random_bits((*key, "generator"), own.ids, 4 * count)[0] >> 39).view(count, 4) / 2**24
        labels = torch.tensor([next(c for c in range(classes) if point * ends[-1] < ends[c]) for point in drawn[:, 0]])
        companions = made(generator, drawn[:, 1:], labels, classes).detach()

        def loss(model, batch):
            outputs = [head_of(model, features(model, inputs[batch])), head_of(model, companions[batch])]
            return cross_entropy(outputs[0], targets[batch]) + 0.7 * cross_entropy(outputs[1], labels[batch])

        return descended_at(model, loss, own, (*key, "all"), epochs=2)

    clients = [plainly(client, own) for client, own in participants(data, 0)]
    fit(method, data, 1, bare=True)
    assert_shared(method, start, weighted_mean(clients, data.make_round(0).examples.counts))
    for (client, _), model in zip(participants(data, 0), clients, strict=True):
        assert distance(row(method, client), model) < 1e-12


def test_no_class_is_drawn_that_nobody_has(data_of):
    method = built(SMALL, data_of(5))
    points = torch.linspace(0, 1 - 2**-24, 400)
    drawn = {}
    for shares in ([0.0, 3.0, 0.0, 1.0, 0.0], [0.0] * 5):
        server = {**method.server.tree, "class_shares": torch.tensor(shares)}
        drawn[sum(shares)] = companions_of(server, points, torch.rand(400, 3))
    labels = drawn[4]["companion_classes"]
    assert labels.bincount(minlength=5).tolist() == [0, 300, 0, 100, 0]
    assert all(torch.isfinite(companions["companion_features"]).all() for companions in drawn.values())


@pytest.mark.parametrize(
    ("options", "rounds", "differs"), [({"strength": 0.0}, 3, False), ({}, 1, False), ({}, 2, True)]
)
def test_it_is_lg_fedavg_without_the_term_and_in_the_first_round(options, rounds, differs, train):
    method, plain = train(partial(SMALL, **options), rounds), train(partial(LGFedAvg, head=1), rounds)
    for one, other in ((rows(plain), rows(method)), (tensors(plain.network), tensors(method.network))):
        assert (distance(one, other) > 1e-6) == differs
        assert distance(one, other) < 1e-12 or differs


def test_clients_receive_head_and_generator_and_send_head_and_shares(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(SMALL, data)
    fit(method, data, 1, bare=True)
    head, generator = 3 * 5 + 3, (3 + 3 + 1) * 7 + 2 * 7 + (7 + 1) * 5
    assert method.accounting.ledger.down == 64 * data.num_clients * (head + generator + 3)
    assert method.accounting.ledger.up == 64 * data.num_clients * (head + 3 + 1), "and each client's loss"


def test_a_head_of_two_layers_is_refused(ragged_data):
    with pytest.raises(PflError, match=r"^model\.head must be one linear layer, got fc2, fc3"):
        built(partial(SMALL, head=2), ragged_data())
