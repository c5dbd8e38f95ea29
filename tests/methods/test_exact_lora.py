"""FedEx-LoRA and FLoRA: adapted layers become the mean of the clients' ones."""

import pytest
import torch
from fakes.loops import map_clients
from fakes.methods import built, distance, tensors, weighted_mean
from fakes.torch_sgd import by_phase
from torch import nn
from torch.nn import functional as F

from pfl_lightning.methods import FedAvg, FedExLoRA, FLoRA
from pfl_lightning.methods.families.exact_lora import TRAINED
from pfl_lightning.models import LoRA, Network
from pfl_lightning.server import SecureAggregator
from pfl_lightning.system import Participation

ADAPTER = LoRA(2, alpha=6.0, targets="fc1")
RATES = {"optimizer": "AdamW", "epochs": 2, "lr": 0.01, "adapter": ADAPTER}
# numbers of a layer of 256 inputs and 8 outputs, of one rank of it; of the head of 5 inputs and 3 outputs
WEIGHT, ONE_RANK, HEAD, LOSS = 256 * 8, 256 + 8, 18, 1
both = pytest.mark.parametrize("kind", [FedExLoRA, FLoRA])

pytestmark = pytest.mark.usefixtures("float64")


def adapted(tree, path="fc1"):
    """The weight of a layer with its adapter: W + alpha / rank * B A."""
    return tree[f"{path}.weight"] + 3.0 * tree[f"{path}.lora_B"] @ tree[f"{path}.lora_A"]


@both
@pytest.mark.parametrize("aggregator", [None, SecureAggregator()], ids=["clear", "secure"])
def test_the_adapted_layer_becomes_the_mean_of_the_clients(kind, aggregator, train, ragged_data):
    before, after = (train(kind, rounds, aggregator=aggregator, **RATES) for rounds in (1, 2))
    (data := ragged_data()).setup()
    phase, key = before.phase(TRAINED), (1, "train", 1, "all")
    clients, _ = map_clients(data, lambda own: by_phase(before.network, tensors(before.network), phase, own, key), 1)
    counts, inputs = data.make_round(1).examples.counts, torch.randn(4, 256)
    found, bias = tensors(after.network), after.network.fc1.bias
    outputs = [{"": F.linear(inputs, adapted(each), bias)} for each in clients]
    (expected,) = weighted_mean(outputs, counts).values()
    assert (expected - F.linear(inputs, adapted(before.network.state_dict()), bias)).abs().max() > 1e-2
    assert (expected - after.network.fc1(inputs)).abs().max() < 1e-10
    mean = weighted_mean(clients, counts)
    assert (expected - F.linear(inputs, adapted(mean), bias)).abs().max() > 1e-4, "FedIT's means are not it"
    exact = [name for name in mean if name.startswith("fc3") or (kind is FedExLoRA and "lora" in name)]
    assert all((mean[name] - found[name]).abs().max() < 1e-10 for name in exact)


def test_with_one_client_it_is_fedit(train, pool_of):
    ours, fedit = (train(kind, 3, pool_of(1), **RATES) for kind in (FedExLoRA, FedAvg))
    assert distance(ours.network, fedit.network) < 1e-12
    ours, fedit = (train(kind, 3, pool_of(2), **RATES) for kind in (FedExLoRA, FedAvg))
    assert distance(ours.network, fedit.network) > 1e-4


def test_after_a_first_round_both_are_the_same_model(train):
    fedex, flora = (train(kind, 1, **RATES) for kind in (FedExLoRA, FLoRA))
    assert distance(fedex.client(0), flora.client(0)) < 1e-12
    assert distance(fedex.network, flora.network) > 1e-2


def test_mixed_precision_leaves_the_products_exact(ragged_data, fit):
    torch.set_default_dtype(torch.float32)
    fedex, flora = (built(kind, ragged_data(), **RATES) for kind in (FedExLoRA, FLoRA))
    for method in (fedex, flora):
        fit(method, ragged_data(), 1, bare=True, precision="bf16-mixed")
    assert distance(fedex.client(0), flora.client(0)) < 1e-6


def test_the_adapters_of_flora_begin_anew_in_each_round(train):
    once, twice = (train(FLoRA, rounds, **RATES).network.fc1 for rounds in (1, 2))
    for layer in (once, twice):
        assert not layer.lora_B.any()
        assert 0.9 / 16 < layer.lora_A.abs().max() <= 1 / 16, "as torch draws a weight of 256 inputs"
    assert (once.lora_A - twice.lora_A).abs().mean() > 0.01


@both
def test_all_clients_share_the_weights(kind, train):
    method = train(kind, 1, **RATES)
    assert "fc1.weight" in method.received(torch.arange(3)).shared
    assert not method.clients.names
    assert method.network.fc2.weight.requires_grad is False


@pytest.mark.parametrize(
    ("kind", "sent", "rank"), [(FedExLoRA, 2 * ONE_RANK + HEAD, (3 - 1) * 2), (FLoRA, HEAD, 3 * 2)]
)
def test_what_is_sent_is_factors_and_what_a_client_has_missed(kind, sent, rank, train, ragged_data):
    data = ragged_data(participation=Participation(pool_size=3))
    ledger = train(kind, 3, data, **RATES).accounting.ledger
    assert ledger.up == 64 * 3 * (2 * ONE_RANK + HEAD + LOSS)
    before, now = (set(data.make_round(index).examples.ids.tolist()) for index in (1, 2))
    returning, missing = len(now & before), len(now - before)
    assert returning
    assert missing
    assert rank * ONE_RANK < WEIGHT < 2 * rank * ONE_RANK
    assert ledger.down == 64 * (3 * sent + returning * rank * ONE_RANK + missing * WEIGHT)


@both
def test_secure_sums_are_sent_of_the_products_too(kind, train):
    ledger = train(kind, 1, aggregator=SecureAggregator(), **RATES).accounting.ledger
    weight = 1  # of the sum
    assert ledger.up == 64 * 6 * (2 * ONE_RANK + WEIGHT + HEAD + LOSS + weight)


class Attending(nn.Module):
    """Torch's attention over four tokens of 64 numbers, whose weights have two names."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)

    def forward(self, inputs):
        tokens = inputs.flatten(1).unflatten(1, (4, 64))
        return self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1)


def attending(input_shape, num_classes):
    return Network({"attending": Attending(), "head": nn.Linear(64, num_classes)})


@both
def test_weights_of_torchs_attention_move(kind, train, ragged_data):
    options = {"network": attending, "adapter": LoRA(2, alpha=6.0), "lr": 0.1}
    start = built(kind, ragged_data(), **options)
    one, many = (train(kind, 2, backend=backend, **options) for backend in ("sequential", "batched"))
    assert distance(one.client(0), many.client(0)) < 1e-10
    images = torch.randn(3, 1, 16, 16)
    assert (one.client(0)(images) - one.network.eval()(images)).abs().max() < 1e-12
    before, after = (method.network.attending.attention for method in (start, one))
    assert after.in_proj_weight is after.in_proj.weight
    for name in ("in_proj", "out_proj"):
        assert (getattr(after, name).weight - getattr(before, name).weight).abs().max() > 1e-6
