from functools import partial

import pytest
import torch
from fakes.methods import built, distance, stepping, tensors

from pfl_lightning.methods import FedGH
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


def test_a_step_of_the_head_is_that_of_softmax_regression(ragged_data, monkeypatch):
    data = ragged_data()
    method = stepping(built(partial(FedGH, server_lr=0.3), data, hidden=(2,)))
    head = method.network.fc2
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    monkeypatch.setattr(method, "uploaded", lambda batch: (torch.tensor([[1.0, 2.0]]), torch.tensor([1])))
    data.setup()
    method.server_update({}, data.make_round(0))
    torch.testing.assert_close(head.weight.detach(), torch.tensor([[-0.1, -0.2], [0.2, 0.4], [-0.1, -0.2]]))
    torch.testing.assert_close(head.bias.detach(), torch.tensor([-0.1, 0.2, -0.1]))


def test_clients_upload_the_mean_features_of_the_classes_that_they_have(ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=4))
    method = built(partial(FedGH, server_epochs=0), data)
    head = tensors(method.network.fc3)
    fit(method, data, 1, bare=True)
    assert distance(head, tensors(method.network.fc3)) == 0, "nobody uploads a head"
    features, classes = method.uploaded(data.make_round(0))
    expected, labels = [], []
    for client in sorted(data.make_round(0).examples.ids.tolist()):
        ((inputs, targets),) = data.client_dataloader(client, "train", batch_size=99)
        body = torch.nn.Sequential(*list(method.client(client, "stored").children())[:-1])
        for label in sorted(targets.unique().tolist()):
            expected.append(body(inputs)[targets == label].mean(0).detach())
            labels.append(label)
    assert classes.tolist() == labels
    torch.testing.assert_close(features, torch.stack(expected))
    ledger = method.accounting.ledger
    assert ledger.up == 64 * (5 * len(labels) + 4), "and each client's loss"
    assert ledger.down == 64 * 4 * (5 * 3 + 3)


def test_the_server_lowers_the_loss_of_its_head_on_what_it_got(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    losses = {}
    for epochs in (0, 50):
        method = built(partial(FedGH, server_epochs=epochs, server_lr=0.5), data)
        fit(method, data, 1, str(epochs), bare=True)
        features, classes = method.uploaded(data.make_round(0))
        losses[epochs] = torch.nn.functional.cross_entropy(method.network.fc3(features), classes).item()
    assert losses[50] < 0.8 * losses[0]
