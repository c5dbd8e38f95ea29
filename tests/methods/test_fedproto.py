from functools import partial

import pytest
import torch
from fakes.loops import features, plain_rounds
from fakes.methods import built, distance, row, rows, tensors
from plain_methods import PlainFedProto

from pfl_lightning.methods import FedPAC, FedProto, Local
from pfl_lightning.methods.families.prototypes import Nearest

pytestmark = pytest.mark.usefixtures("float64")


def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, pool_of, fit):
    data = pool_of(3)
    method = built(partial(FedProto, strength=0.7), data, weight_decay=0.0, aggregator=aggregator)
    start = tensors(method.network)
    plain = plain_rounds(PlainFedProto, method, data, 3, strength=0.7)
    fit(method, data, 3, bare=True)
    for client, model in plain.states.items():
        assert distance(model, row(method, client)) < 1e-9
    assert (method.server.tree["prototypes"] - plain.prototypes).abs().max() < 1e-9
    assert distance(start, method.network) == 0


def test_without_the_term_it_is_local(train):
    proto, local = train(partial(FedProto, strength=0.0), 2), train(Local, 2)
    assert all(torch.equal(rows(proto)[name], stack) for name, stack in rows(local).items())


def test_prototypes_are_of_all_classes_where_the_head_has_several_layers(ragged_data, fit):
    data = ragged_data()
    method = built(FedProto, data, hidden=(8, 2), head=2)
    fit(method, data, 1, bare=True)
    assert method.server.tree["prototypes"].shape == (3, 8)


@pytest.mark.parametrize("make", [FedProto, FedPAC])
def test_a_class_that_no_participant_has_keeps_its_prototype(make, pool_of, train):
    data = pool_of(1)
    data.setup()
    later = next(index for index in range(1, 30) if data.make_round(index).examples.ids.tolist() == [0])
    before, after = (train(make, rounds, pool_of(1)).server.tree["prototypes"] for rounds in (later, later + 1))
    (own_class,) = data.make_round(later).examples.targets(torch.tensor([[0]]))[0].tolist()  # of its only sample
    others = [label for label in range(3) if label != own_class]
    assert before[others].abs().max() > 0
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[own_class], after[own_class])


def test_the_nearest_prototype_decides_among_those_that_there_are():
    nearest = Nearest(torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 2.0]]), torch.tensor([True, True, False]))
    logs = nearest(torch.tensor([[1.0, 2.0]]))
    assert logs.argmax(1).tolist() == [1], "squared distances of 8 and 2; the third class has no prototype"
    torch.testing.assert_close(logs[0, :2], torch.tensor([-8.0, -2.0]).log_softmax(0))
    of_two = Nearest(nearest.prototypes[:2], nearest.known[:2])(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    torch.testing.assert_close(of_two, torch.tensor([[6.0], [-18.0]]))


def test_clients_are_scored_by_the_nearest_prototype(ragged_data, fit):
    data = ragged_data()
    method = built(partial(FedProto, predict="nearest"), data)
    fit(method, data, 2)
    prototypes = method.server.tree["prototypes"]
    hits = []
    for client in range(data.num_clients):
        for inputs, targets in data.client_dataloader(client, "test", 99):
            model = method.client(client, "stored")
            distances = torch.cdist(features(row(method, client), inputs), prototypes)
            hits.append((distances.argmin(1) == targets).double().mean())
            assert torch.equal(model(inputs).argmax(1), distances.argmin(1))
    scored = method.trainer.callback_metrics["test/stored/accuracy/mean"]
    assert scored.item() == pytest.approx(torch.stack(hits).mean().item(), abs=1e-6)
