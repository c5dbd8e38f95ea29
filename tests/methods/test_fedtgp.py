from functools import partial
from math import exp, log

import pytest
import torch
from fakes.methods import built, rows, stepping
from torch import nn
from torch.nn import functional as F

from pfl_lightning.data import Round
from pfl_lightning.methods import FedTGP, Local
from pfl_lightning.methods.fedtgp import margin

pytestmark = pytest.mark.usefixtures("float64")


def test_the_loss_of_an_upload_asks_for_the_margin(ragged_data):
    method = built(FedTGP, ragged_data(), hidden=(2,))
    method.server.tree["shares"].copy_(torch.tensor([1.0, 1.0, 0.0]))
    prototypes = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 0.0]])  # of the last class nothing is known
    loss = method.contrast(torch.zeros(1, 2), torch.tensor([0]), prototypes, torch.tensor(2.0))
    assert loss.item() == pytest.approx(log(1 + exp(7 - 10)), abs=1e-12)
    assert loss.item() == pytest.approx(0.048587, abs=1e-6)


@pytest.mark.parametrize(
    ("means", "largest", "expected"), [([0, 3, 7], 100.0, 4.0), ([0, 3, 7], 2.0, 2.0), ([3], 9.0, 0.0), ([], 9.0, 0.0)]
)
def test_the_margin_is_the_largest_distance_to_a_neighbour(means, largest, expected):
    assert margin(torch.tensor(means, dtype=torch.float64)[:, None], largest).item() == expected


def test_without_the_term_models_are_those_of_local(train):
    prototypes, local = train(partial(FedTGP, strength=0.0), 2), train(Local, 2)
    assert all(torch.equal(rows(prototypes)[name], stack) for name, stack in rows(local).items())


def test_the_server_trains_like_a_plain_loop_over_modules(ragged_data, monkeypatch):
    data = ragged_data()
    method = stepping(built(partial(FedTGP, server_lr=0.1, server_epochs=3, server_batch=2), data, hidden=(4,)))
    data.setup()
    source = torch.Generator().manual_seed(3)
    features, classes = torch.randn(5, 4, generator=source), torch.tensor([0, 2, 0, 2, 2])
    monkeypatch.setattr(method, "uploaded", lambda batch: (features, classes))
    embeddings = nn.Parameter(method.server.tree["embeddings"].clone())
    generator = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    state = {name.removeprefix("generator."): tensor for name, tensor in method.server.tree.items()}
    for layer, name in ((generator[0], "fc1"), (generator[2], "fc2")):
        layer.load_state_dict({kind: state[f"{name}.{kind}"] for kind in ("weight", "bias")})
    optimizer = torch.optim.SGD([embeddings, *generator.parameters()], lr=0.1)
    batch: Round = data.make_round(0)
    gap = (features[classes == 0].mean(0) - features[classes == 2].mean(0)).norm()
    for places in [*method.mini_batches(batch, 5, 3)]:
        distances = (features[places, None] - generator(embeddings)[None]).norm(dim=2)[:, [0, 2]]
        labels = (classes[places] == 2).long()
        loss = F.cross_entropy(-(distances + gap * F.one_hot(labels, 2)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    method.server_update({}, batch)
    torch.testing.assert_close(method.server.tree["embeddings"], embeddings.detach())
    torch.testing.assert_close(method.server.tree["prototypes"], generator(embeddings).detach())
    assert (method.server.tree["shares"] > 0).tolist() == [True, False, True]


def test_clients_receive_the_prototypes_alone(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(FedTGP, data)
    fit(method, data, 1, bare=True)
    assert method.accounting.ledger.down == 64 * data.num_clients * (3 * 5 + 3)
    _, classes = method.uploaded(data.make_round(0))
    assert method.accounting.ledger.up == 64 * 5 * len(classes)
