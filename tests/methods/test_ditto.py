from functools import partial

import pytest
from fakes.loops import participants, pull, trained
from fakes.methods import built, distance, row, rows, tensors

from pfl_lightning.methods import Ditto, FedAvg, Local

pytestmark = pytest.mark.usefixtures("float64")


def test_without_proximity_the_personal_models_are_those_that_clients_train_alone(pool_of, train):
    # with one batch an epoch, since the order of the samples is another one
    ditto, local = (train(make, 3, pool_of(3), batch_size=100) for make in (partial(Ditto, proximity=0.0), Local))
    assert distance(rows(local), rows(ditto, "personal.")) < 1e-12


def test_personal_models_follow_a_plain_loop_over_two_rounds(ragged_data, train):
    """The anchor is the model as it was received in the same round."""
    make, data = partial(Ditto, proximity=0.7, personal_epochs=2), ragged_data(val_fraction=0.0)
    methods = [train(make, rounds, data, momentum=0.5, weight_decay=0.0) for rounds in (1, 2)]
    start = tensors(built(make, data).network)
    for client, own in participants(data, 0):
        v = start
        for index, anchor in enumerate((start, tensors(methods[0].network))):
            rule = {"epochs": 2, "momentum": 0.5, "penalty": pull(0.7, anchor)}
            v, _ = trained(methods[1].network, v, own, (1, "train", index, "personal"), **rule)
        found = row(methods[1], client, "personal.")
        assert distance(v, found) < 1e-10
        assert distance(start, found) > 1e-3


def test_the_chunk_counts_what_clients_keep_beside_the_network(ragged_data):
    sizes = {make: sum(built(make, ragged_data()).cohort.sizes) for make in (FedAvg, Local, Ditto)}
    assert sizes[Local] == sizes[FedAvg]
    assert sizes[Ditto] == 2 * sizes[FedAvg]
