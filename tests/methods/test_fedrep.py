from functools import partial

import numpy as np
import pytest
import torch
from fakes.loops import map_clients, trained
from fakes.methods import assert_weighted_mean, built, tensors

from pfl_lightning.methods import DePRL, FedRep
from pfl_lightning.models import start_network
from pfl_lightning.seeding import seed_of

DECAY = 0.05

pytestmark = pytest.mark.usefixtures("float64")


def by_hand(method, start, own, head_epochs, head_lr, momentum, body_epochs=1):
    """One client's model after two repetitions, and its training loss."""
    model, train = start, partial(trained, method.network, own=own, momentum=momentum, decay=DECAY)
    for repetition in range(2):
        heads, bodies = ((1, "train", 0, part, repetition) for part in ("head", "body"))
        model, _ = train(model, key=heads, moves=method.parts["head"], lr=head_lr, epochs=head_epochs)
        model, loss = train(model, key=bodies, moves=method.parts["body"], epochs=body_epochs)
    return model, loss


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, {"head_epochs": 10, "head_lr": 0.1, "momentum": 0.5}),
        ({"head_epochs": 3, "head_lr": 0.3, "momentum": 0.2}, {"head_epochs": 3, "head_lr": 0.3, "momentum": 0.2}),
        ({"head_epochs": 2, "body_epochs": 3}, {"head_epochs": 2, "head_lr": 0.1, "momentum": 0.5, "body_epochs": 3}),
    ],
    ids=["defaults", "others", "several epochs on the body"],
)
def test_a_round_is_a_plain_loop_over_heads_and_bodies_in_turn(options, rule, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(FedRep, epochs=2, **options), data, weight_decay=DECAY)
    start = tensors(method.network)
    trainer = fit(method, data, 1, bare=True)
    examples = data.make_round(0).examples
    clients, losses = map_clients(data, lambda own: by_hand(method, start, own, **rule))
    for name in method.parts["head"]:
        heads = torch.stack([client[name] for client in clients])
        torch.testing.assert_close(method.clients.stack(name)[examples.ids], heads, atol=1e-11, rtol=0)
    assert_weighted_mean(method, start, clients, examples.counts)
    expected = np.average(losses, weights=examples.counts)
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("make", [FedRep, DePRL])
def test_each_client_may_begin_with_the_head_of_another_network(make, ragged_data):
    data = ragged_data()
    common, method = built(make, data), built(partial(make, head_init="random"), data)
    for client in range(data.num_clients):
        key = seed_of(data.seed, "head", client)
        other = start_network(method.make_network, data.input_shape, data.num_classes, key, {}).state_dict()
        for name in method.kept:
            first = other if name in method.parts["head"] else tensors(method.network)
            assert torch.equal(method.clients.stack(name)[client], first[name])
            assert torch.equal(common.clients.stack(name)[client], tensors(common.network)[name])
