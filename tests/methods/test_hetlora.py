from functools import partial

import pytest
import torch
from fakes.loops import participants
from fakes.loops import trained as trained_alone
from fakes.methods import built, distance, rows, tensors
from fakes.ranks import ADAPTER, ENTRIES, HEAD, LAYERS, OPTIONS, RANKS, network_of_rank, of_rank, product, shared

from pfl_lightning.methods import FedAvg, HetLoRA, hetlora
from pfl_lightning.server import SecureAggregator

pytestmark = pytest.mark.usefixtures("float64")


def padded(tensor, like):
    """A tensor with zeros after its entries, of the shape of another one."""
    whole = torch.zeros_like(like)
    whole[tuple(map(slice, tensor.shape))] = tensor
    return whole


def tail(model, start):
    """What the cut depends on, of rows and columns from ``start`` on."""
    ends = ((model[f"{layer}.lora_A"][start:], model[f"{layer}.lora_B"][:, start:]) for layer in LAYERS)
    return sum(float(a.norm() * b.norm()) for a, b in ends)


@pytest.mark.parametrize("decay", [1.0, 0.7, 0.4])
@pytest.mark.parametrize("secure", [False, True], ids=["clear", "secure"])
def test_rounds_of_clients_of_three_ranks_are_a_plain_loop(decay, secure, pool_of, fit, backend):
    data = pool_of(4)
    options = {"aggregator": SecureAggregator(limit=1000.0)} if secure else {}
    options |= {**OPTIONS, "weight_decay": 1.0, "ranks": RANKS, "decay": decay}  # so that norms fall
    method = built(HetLoRA, data, adapter=ADAPTER, backend=backend, **options)
    frozen = tensors(method.network)
    common = shared(method)
    fit(method, data, 3, bare=True)
    ranks = {client: RANKS[client % 3] for client in range(6)}
    for index in range(3):
        received = 0
        models = []
        norms = []
        for client, own in participants(data, index):
            rank = ranks[client]
            received += rank * ENTRIES + HEAD
            network = network_of_rank(rank, data, {**frozen, **common})
            start = tensors(network)
            key = (1, "train", index, "all")
            numbers = {"moves": frozenset(common), "epochs": 2, "momentum": 0.5, "decay": 1.0}
            model, _ = trained_alone(network, start, own, key, **numbers)
            shorter = max(1, int(decay * rank + 1e-9))
            if tail(model, shorter) < tail(start, shorter):
                ranks[client] = shorter
            models.append(of_rank(model, ranks[client]))
            norms.append(sum(product(models[-1], layer).square().sum() for layer in LAYERS).sqrt() + 1e-10)
        weights = torch.stack(norms) / sum(norms)
        held = max(len(model["fc1.lora_A"]) for model in models)
        for name, tensor in common.items():
            stack = torch.stack([padded(model[name], tensor) for model in models])
            if "lora" not in name:
                common[name] = stack.mean(0)
                continue
            mean = torch.tensordot(weights, stack, 1)
            nobodys = (slice(held, None),) if name.endswith("A") else (slice(None), slice(held, None))
            mean[nobodys] = tensor[nobodys]
            common[name] = mean
    assert distance(common, method.network) < (1e-5 if secure else 1e-9)
    assert rows(method)["rank"].tolist() == [ranks[client] for client in range(6)]
    assert (sum(ranks.values()) < 12) == (decay < 1), "some are cut"
    assert method.accounting.ledger.down == 64 * received, "in the last round, before its cuts"


def test_rows_that_nobody_holds_stay_as_they_were(train, ragged_data):
    method = train(HetLoRA, 2, adapter=ADAPTER, ranks=[1, 2])
    start = built(HetLoRA, ragged_data(), adapter=ADAPTER).network.state_dict()
    after = method.network.state_dict()
    for layer in LAYERS:
        assert torch.equal(after[f"{layer}.lora_A"][2], start[f"{layer}.lora_A"][2])
        assert not after[f"{layer}.lora_B"][:, 2].any()
        assert (after[f"{layer}.lora_A"][:2] != start[f"{layer}.lora_A"][:2]).all()


def test_if_ranks_and_norms_are_equal_it_is_fedit_with_uniform_weights(train, monkeypatch):
    monkeypatch.setattr(hetlora, "norms_of_products", lambda adapters: torch.full((len(adapters["fc1"][0]),), 0.5))
    method = train(HetLoRA, 2, adapter=ADAPTER, decay=1.0)
    fedit = train(partial(FedAvg, weighting="uniform"), 2, adapter=ADAPTER)
    assert distance(shared(fedit), method.network) < 1e-9


def test_clients_send_what_they_hold_after_the_cut(train):
    """Two clients of each rank at first; layers of 256 by 8 and 8 by 5, and a head of 5 by 3."""
    method = train(HetLoRA, 1, adapter=ADAPTER, ranks=RANKS)
    ranks = rows(method)["rank"].tolist()
    assert method.accounting.ledger.down == 64 * (12 * ENTRIES + 6 * HEAD)
    assert method.accounting.ledger.up == 64 * (sum(ranks) * ENTRIES + 6 * (HEAD + 2))


def test_adapters_that_have_not_trained_give_their_start(train, ragged_data):
    """All norms are 0."""
    method = train(HetLoRA, 2, adapter=ADAPTER, lr=0.0)
    start = built(HetLoRA, ragged_data(), adapter=ADAPTER)
    assert distance(shared(start), method.network) < 1e-12
