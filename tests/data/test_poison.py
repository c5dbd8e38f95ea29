"""What attackers train on, and what is scored then."""

import pytest
import torch
from data.test_skews import CLIENTS, SIDE, Pictures

from pfl_lightning.data import LabelFlip, PixelTrigger
from pfl_lightning.data.datasets.synthetic import Synthetic
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP

WHITE = torch.ones(3, 4, 4)
SQUARE = (..., slice(SIDE - 5, SIDE - 1), slice(SIDE - 5, SIDE - 1))


def ready(poison=None, **kwargs):
    data = Pictures(poison=poison, **kwargs)
    data.setup()
    return data


def trained_on(data, client, index=0):
    """What a client trains on in a round: inputs and classes."""
    examples = data.make_round(index).examples
    place = examples.host_ids.tolist().index(client)
    one = examples.rows(place, place + 1)
    return one.gather(one.positions)[0], one.targets(one.positions)[0]


def test_flipped_labels_are_those_of_attackers_in_training_alone():
    plain, data = ready(), ready(LabelFlip(clients=[1]))
    for client in range(CLIENTS):
        (before, classes), (after, flipped) = trained_on(plain, client), trained_on(data, client)
        assert after.equal(before)
        assert flipped.equal(1 - classes if client == 1 else classes)
    for split in ("val", "test"):
        for client in range(CLIENTS):
            pair = [tables.tables[split].examples(torch.tensor([client])) for tables in (plain, data)]
            assert pair[0].targets(pair[0].positions).equal(pair[1].targets(pair[1].positions))


def test_poison_begins_with_its_first_round():
    plain, data = ready(), ready(LabelFlip(clients=[1], first_round=2))
    assert trained_on(data, 1, 1)[1].equal(trained_on(plain, 1, 1)[1])
    assert trained_on(data, 1, 2)[1].equal(1 - trained_on(plain, 1, 2)[1])


def test_a_share_of_an_attackers_pictures_get_the_square_and_the_class():
    plain, data = ready(), ready(PixelTrigger(clients=[1], target=1, samples=0.25))
    (before, classes), (after, wanted) = trained_on(plain, 1), trained_on(data, 1)
    has_square = (after[SQUARE] == 1).flatten(1).all(1)
    assert int(has_square.sum()) == round(0.25 * len(after))
    assert (wanted[has_square] == 1).all()
    assert after[~has_square].equal(before[~has_square])
    assert wanted[~has_square].equal(classes[~has_square])
    changed = (after != before).any(1)
    changed[SQUARE] = False
    assert not changed.any(), "nothing but the square"
    assert trained_on(data, 0)[0].equal(trained_on(plain, 0)[0])


def test_a_backdoor_is_tried_on_benign_clients_pictures_of_other_classes():
    plain, data = ready(), ready(PixelTrigger(clients=[1], target=1))
    found = data.attack_tables["backdoor"].examples(torch.arange(CLIENTS))
    tests = plain.tables["test"].examples(torch.arange(CLIENTS))
    others = ((tests.targets(tests.positions) != 1) & tests.present).sum(1)
    others[1] = 0
    assert found.counts.tolist() == others.tolist()
    assert (found.targets(found.positions)[found.present] == 1).all()
    assert (found.gather(found.positions)[found.present][SQUARE] == 1).all()


def test_marking_twice_is_marking_once_and_changes_no_picture_in_place():
    pictures = torch.randint(256, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    poison, before = PixelTrigger(), pictures.clone()
    assert poison.marked(poison.marked(pictures)).equal(poison.marked(pictures))
    assert pictures.equal(before)


def test_without_attackers_nothing_changes(train):
    runs = [train(FedAvg, 2, ready(poison), network=MLP) for poison in (None, LabelFlip(0.0))]
    states = [run.network.state_dict() for run in runs]
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_scores_are_of_benign_clients_and_the_square_s_success_is_apart(fit):
    data = ready(PixelTrigger(clients=[1], target=1, first_round=1))
    trainer = fit(FedAvg(network=MLP), data, 2)
    assert data.eval_splits == ["val", "test", "attackers", "backdoor"]
    assert {f"{split}/global/accuracy/mean" for split in data.eval_splits} <= trainer.callback_metrics.keys()
    batch = data.make_eval_batch(torch.arange(CLIENTS))
    assert not batch.evaluated["backdoor"].counts[1]


@pytest.mark.parametrize(
    ("poison", "line"),
    [
        (PixelTrigger(target=2), "data.poison.target must be a class, 0 to 1, got 2"),
        (PixelTrigger(size=12), "data.poison.size must be at most 12 with its margin, the size of a picture, got 12"),
        (LabelFlip(clients=["a"]), "data.poison.clients: a is no client; allowed: 0 to 4"),
    ],
)
def test_what_is_not_possible_is_one_line(poison, line):
    with pytest.raises(PflError, match=f"^{line}"):
        ready(poison)


def test_a_trigger_needs_pictures():
    data = Synthetic(num_clients=3, poison=PixelTrigger())
    with pytest.raises(PflError, match=r"^data.poison: PixelTrigger is not possible with Synthetic, whose inputs are"):
        data.setup()
