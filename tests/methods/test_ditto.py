from functools import partial

import pytest
from fakes.loops import plain_rounds
from fakes.methods import built, distance, row, rows, tensors
from plain_methods import PlainDitto

from pfl_lightning.methods import Ditto, FedAvg, Local

pytestmark = pytest.mark.usefixtures("float64")


def test_without_proximity_the_personal_models_are_those_that_clients_train_alone(pool_of, train):
    # with one batch an epoch, since the order of the samples is another one
    ditto, local = (train(make, 3, pool_of(3), batch_size=100) for make in (partial(Ditto, proximity=0.0), Local))
    assert distance(rows(local), rows(ditto, "personal.")) < 1e-12


def test_personal_models_follow_a_plain_loop_over_two_rounds(ragged_data, fit):
    """The anchor is the model as it was received in the same round."""
    data = ragged_data(val_fraction=0.0)
    options = {"momentum": 0.5, "personal_epochs": 2}
    method = built(partial(Ditto, proximity=0.7, **options), data, weight_decay=0.0)
    start = tensors(method.network)
    plain = plain_rounds(PlainDitto, method, data, 2, proximity=0.7, **options)
    fit(method, data, 2, bare=True)
    assert distance(plain.network, method.network) < 1e-10
    for client, state in plain.states.items():
        assert distance(state, row(method, client)) < 1e-10
        assert distance(start, row(method, client, "personal.")) > 1e-3


def test_the_chunk_counts_what_clients_keep_beside_the_network(ragged_data):
    sizes = {make: sum(built(make, ragged_data()).cohort.sizes[0]) for make in (FedAvg, Local, Ditto)}
    assert sizes[Local] == sizes[FedAvg]
    outputs = 4 * 3  # bytes for a sample
    assert sizes[Ditto] - outputs == 2 * (sizes[FedAvg] - outputs)
