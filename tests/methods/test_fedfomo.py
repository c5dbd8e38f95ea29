import pytest
import torch
from fakes.loops import cross_entropy, participants, samples_of, trained
from fakes.methods import built, distance, row, rows, tensors

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedFomo

pytestmark = pytest.mark.usefixtures("float64")


def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(pool_of, fit):
    data = pool_of(4, val_fraction=0.3)
    method = built(FedFomo, data, epochs=2, weight_decay=0.0)
    models, kinds = [tensors(method.network)] * 6, set()
    fit(method, data, 3, bare=True)

    def loss(model, client):
        own = data.tables["val"].examples(torch.tensor([client]))
        return cross_entropy(method.network, model, *samples_of(own)) if own.longest else torch.zeros(())

    for index in range(3):
        found = {}
        for client, own in participants(data, index):
            found[client], _ = trained(method.network, models[client], own, (1, "train", index, "all"), epochs=2)
        for client, mine in found.items():
            start, gains = models[client], {}
            for other, model in found.items():
                far = torch.cat([(model[name] - start[name]).flatten() for name in start]).norm()
                gains[other] = max(0.0, float((loss(start, client) - loss(model, client)) / far))
            total = sum(gains.values())
            kinds.add(sum(gain > 0 for gain in gains.values()))
            mixed = {n: sum(gain * found[j][n] for j, gain in gains.items()) / (total or 1) for n in mine}
            models[client] = mixed if total else mine
    assert min(kinds) == 0
    assert max(kinds) > 2
    for client, model in enumerate(models):
        assert distance(model, row(method, client, "start.")) < 1e-10


def test_a_client_alone_goes_on_from_its_own_model(train, pool_of):
    """Its own model is the only one, whether it improves or not."""
    method = train(FedFomo, 3, pool_of(1, val_fraction=0.1))
    own = rows(method)
    assert all(torch.equal(own[f"start.{name}"], own[name]) for name in method.parts["all"])
    assert method.accounting.ledger.down == 0


def test_without_validation_samples_it_is_one_line(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    with pytest.raises(PflError, match=r"^data.val_fraction: 0.0 is not possible with FedFomo, .*; allowed: a share"):
        fit(FedFomo(), data, 1, bare=True)
