from functools import partial

import pytest
import torch
from fakes.loops import participants, trained
from fakes.methods import built, distance, row, tensors

from pfl_lightning.methods import FedAvg, FedCAC, Local
from pfl_lightning.server import overlap_attention
from pfl_lightning.tree import Params

pytestmark = pytest.mark.usefixtures("float64")


def personal(method, client):
    """The model with which a client starts its next round."""
    ids = torch.tensor([client])
    return method.eval_model("personal", None, method.received(ids), ()).client(0)


def test_clients_with_the_same_critical_entries_are_mixed_alone_in_the_end():
    """O is .5, 1 and .5: the limits of rounds 0, 49 and 99 are .67, .8333 and 1."""
    critical = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    alike = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    for index in (0, 49, 99):
        assert torch.equal(overlap_attention(critical @ critical.T, (index + 1) / 100), alike)


def test_others_count_from_the_limit_of_the_round():
    """Of 10, 6 and 2 entries in common the mean is 6, and the limit in the middle 8."""
    common = torch.tensor([[12.0, 10.0, 6.0], [10.0, 12.0, 2.0], [6.0, 2.0, 12.0]])
    links = [overlap_attention(common, progress) > 0 for progress in (0.0, 0.5, 1.0)]
    assert links[0].int().tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 1]]
    assert links[1].int().tolist() == links[2].int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_one_client_and_equal_ones_are_no_exception():
    assert overlap_attention(torch.tensor([[3.0]]), 0.3).tolist() == [[1.0]]
    for progress in (0.1, 0.7, 1.0):
        assert torch.equal(overlap_attention(torch.full((6, 6), 7.0), progress), torch.full((6, 6), 1 / 6))


def test_as_many_entries_of_each_tensor_are_critical_and_the_first_of_equal_ones():
    method = FedCAC(critical_share=0.4)
    before = torch.tensor([[0.0, 2.0, 1.0, -1.0, 5.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    after = torch.tensor([[0.1, 3.0, 0.0, -2.0, 5.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert method.critical(after, before).int().tolist() == [[0, 1, 0, 1, 0], [1, 1, 0, 0, 0]]


@pytest.mark.parametrize(("mix_rounds", "share"), [(6, 0.5), (2, 0.25)])
def test_rounds_of_most_clients_are_a_plain_loop(mix_rounds, share, pool_of, fit):
    data = pool_of(4)
    options = {"critical_share": share, "mix_rounds": mix_rounds}
    method = built(partial(FedCAC, **options), data, weight_decay=0.0, epochs=2)
    common, own, friends = tensors(method.network), {}, []
    fit(method, data, 4, bare=True)

    def start(client):
        mask, mix = own.get(client, (None, None))
        return {name: torch.where(mask[name], mix[name], w) if mask else w for name, w in common.items()}

    for index in range(4):
        models, masks = {}, {}
        for client, examples in participants(data, index):
            first = start(client)
            models[client], _ = trained(method.network, first, examples, (1, "train", index, "all"), epochs=2)
            masks[client] = {}
            for name, w in models[client].items():
                scores = ((w - first[name]) * w).abs().flatten()
                chosen = scores.argsort(descending=True, stable=True)[: int(share * len(scores))]
                mask = torch.zeros(len(scores), dtype=torch.bool)
                mask[chosen] = True
                masks[client][name] = mask.view_as(w)
        flat = {client: torch.cat([mask[name].flatten() for name in common]).int() for client, mask in masks.items()}
        overlap = {
            (i, j): 1 - float((one - two).abs().sum()) / (2 * float(one.sum()))
            for i, one in flat.items()
            for j, two in flat.items()
            if i != j
        }
        mean = sum(overlap.values()) / len(overlap)
        limit = mean + (index + 1) / mix_rounds * (max(overlap.values()) - mean)
        for i, model in models.items():
            mixed = [models[j] for j in models if i != j and overlap[i, j] >= limit - 1e-12 and index < mix_rounds]
            friends.append(len(mixed))
            mix = {name: sum([w, *(other[name] for other in mixed)]) / (1 + len(mixed)) for name, w in model.items()}
            own[i] = masks[i], mix
        common = {name: sum(model[name] for model in models.values()) / len(models) for name in common}
    assert {0, 1} <= set(friends)
    assert distance(common, method.network) < 1e-10
    for client in range(6):
        assert distance(start(client), personal(method, client)) < 1e-10


def test_without_critical_parameters_it_is_fedavg_with_uniform_weights(train, pool_of):
    plain = train(FedAvg, 3, pool_of(4), weighting="uniform")
    method = train(partial(FedCAC, critical_share=0.0), 3, pool_of(4))
    assert distance(plain.network, method.network) < 1e-12
    assert max(distance(plain.network, personal(method, client)) for client in range(6)) < 1e-12


def test_with_critical_parameters_alone_that_nobody_mixes_it_is_local(train):
    method = train(partial(FedCAC, critical_share=1.0, mix_rounds=0), 3)
    local = train(Local, 3)
    assert max(distance(row(local, client), personal(method, client)) for client in range(6)) < 1e-12


def test_a_client_that_has_not_taken_part_has_the_global_model(train, pool_of):
    data = pool_of(2)
    method = train(FedCAC, 1, data)
    absent = ({*range(6)} - {client for client, _ in participants(data, 0)}).pop()
    assert distance(personal(method, absent), method.network) == 0
    model = method.eval_model("global", None, method.received(torch.tensor([absent])), ())
    assert distance(Params(method.broadcast(), {}).tree, model.client(0)) == 0


@pytest.mark.parametrize(("rounds", "mixes"), [(2, True), (3, False)])
def test_a_bit_for_each_parameter_is_sent_while_the_server_mixes(rounds, mixes, train):
    method = train(partial(FedCAC, mix_rounds=2), rounds)
    entries = sum(tensor.numel() for tensor in method.network.parameters())
    model, loss, bitmap = 8 * entries, 8, -(-entries // 8)
    assert method.accounting.ledger.up == 8 * 6 * (model + loss + mixes * bitmap)
    assert method.accounting.ledger.down == 8 * 6 * model
