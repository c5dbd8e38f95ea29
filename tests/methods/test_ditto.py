from functools import partial

import pytest
from fakes.loops import pull, trained
from fakes.methods import built, distance, rows, tensors

from pfl_lightning.methods import Ditto, FedAvg, Local
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


def test_the_common_model_is_fedavgs_bit_for_bit(train):
    assert distance(train(FedAvg, 2).network, train(Ditto, 2).network) == 0


def test_without_proximity_the_personal_models_are_those_that_clients_train_alone(ragged_data, train):
    # with one batch an epoch, since the order of the samples is another one
    some = partial(ragged_data, participation=Participation(pool_size=3))
    ditto, local = (train(make, 3, some(), batch_size=100) for make in (partial(Ditto, proximity=0.0), Local))
    assert distance(rows(local), rows(ditto, "personal.")) < 1e-12


def test_personal_models_follow_a_plain_loop_over_two_rounds(ragged_data, train):
    """The anchor is the model as it was received in the same round."""
    make, data = partial(Ditto, proximity=0.7, personal_epochs=2), ragged_data(val_fraction=0.0)
    methods = [train(make, rounds, data, momentum=0.5, weight_decay=0.0) for rounds in (1, 2)]
    start, personal = tensors(built(make, data).network), rows(methods[1], "personal.")
    for row, client in enumerate(data.make_round(0).examples.ids.tolist()):
        v = start
        for index, anchor in enumerate((start, tensors(methods[0].network))):
            own, key = data.make_round(index).examples.rows(row, row + 1), (1, "train", index, "personal")
            rule = {"lr": 0.1, "epochs": 2, "momentum": 0.5, "penalty": pull(0.7, anchor)}
            v, _ = trained(methods[1].network, v, v, own, key, **rule)
        found = {name: stack[client] for name, stack in personal.items()}
        assert distance(v, found) < 1e-10
        assert distance(start, found) > 1e-3


def test_the_chunk_counts_what_clients_keep_beside_the_network(ragged_data):
    sizes = {make: sum(built(make, ragged_data()).cohort.sizes) for make in (FedAvg, Local, Ditto)}
    assert sizes[Local] == sizes[FedAvg]
    assert sizes[Ditto] == 2 * sizes[FedAvg]
