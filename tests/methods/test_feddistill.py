from functools import partial

import pytest
import torch
from fakes.methods import built, distance, rows

from pfl_lightning.methods import FedDistill, Local
from pfl_lightning.system import Participation
from pfl_lightning.tree import Params

pytestmark = pytest.mark.usefixtures("float64")


def received_of(predictions, present, rounds, number=2.0):
    """What clients receive after a round in which those took part whose last round has this number."""
    took_part = torch.tensor([last == number for last in rounds])
    server = {
        "server.predictions": predictions[took_part].sum(0),
        "server.present": present[took_part].sum(0),
        "server.round": torch.tensor(number),
    }
    own = {"own.predictions": predictions, "own.present": present, "own.round": torch.tensor(rounds)}
    return Params(server, own)


def test_a_client_learns_from_the_means_of_all_others():
    predictions = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])[:, None].expand(3, 2, 2)
    present = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    predictions = predictions * present[..., None]
    hints = FedDistill().hints(received_of(predictions, present, [2.0, 2.0, 2.0]))
    expected = torch.tensor([[0.3, 0.7], [0.5, 0.5], [0.7, 0.3]])
    torch.testing.assert_close(hints["hint"][:, 0], expected)
    assert hints["known"].tolist() == [[1, 0], [1, 1], [1, 1]], "nobody else has the first client's second class"
    torch.testing.assert_close(hints["hint"][1:, 1], torch.tensor([[0.9, 0.1]] * 2))


def test_a_client_that_was_not_there_leaves_nothing_of_its_own_out():
    predictions = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])[:, None].expand(3, 2, 2)
    hints = FedDistill().hints(received_of(predictions, torch.ones(3, 2), [1.0, 2.0, 2.0]))
    torch.testing.assert_close(hints["hint"][0, 0], torch.tensor([0.3, 0.7]))
    torch.testing.assert_close(hints["hint"][1, 0], torch.tensor([0.1, 0.9]))


def test_the_server_adds_up_what_trained_models_predict(ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=4))
    method = built(FedDistill, data)
    fit(method, data, 1, bare=True)
    totals, present = torch.zeros(3, 3), torch.zeros(3)
    for client in data.make_round(0).examples.ids.tolist():
        ((inputs, targets),) = data.client_dataloader(client, "train", batch_size=99)
        shares = method.client(client, "stored")(inputs).softmax(1).detach()
        for label in targets.unique().tolist():
            totals[label] += shares[targets == label].mean(0)
            present[label] += 1
    torch.testing.assert_close(method.server.tree["predictions"], totals)
    torch.testing.assert_close(method.server.tree["present"], present)


@pytest.mark.parametrize(
    ("options", "rounds", "differs"), [({"strength": 0.0}, 3, False), ({}, 1, False), ({}, 2, True)]
)
def test_it_is_local_without_the_term_and_in_the_first_round(options, rounds, differs, train):
    method, local = train(partial(FedDistill, **options), rounds), train(Local, rounds)
    own = {name: stack for name, stack in rows(method).items() if not name.startswith("own.")}
    assert (distance(rows(local), own) > 1e-6) == differs
    if not differs:
        assert distance(rows(local), own) < 1e-12
