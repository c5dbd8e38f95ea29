from functools import partial

import pytest
import torch
from fakes.loops import map_clients
from fakes.methods import built, distance, tensors, weighted_mean
from fakes.torch_sgd import by_phase

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedExLoRA, FLoRA, RoLoRA
from pfl_lightning.models import LoRA

RATES = {"optimizer": "AdamW", "epochs": 2, "lr": 0.01}
# numbers of a rank of 2 at a layer of 256 inputs and 8 outputs; of the head of 5 inputs and 3 outputs
A, B, HEAD, LOSS = 2 * 256, 2 * 8, 18, 1

pytestmark = pytest.mark.usefixtures("float64")


def adapter(**options):
    return LoRA(2, alpha=6.0, targets="fc1", **options)


def test_a_round_of_b_is_that_of_ffa_lora(train):
    ours = train(RoLoRA, 1, adapter=adapter(), **RATES)
    theirs = train(FedAvg, 1, adapter=adapter(freeze_a=True), **RATES)
    assert distance(ours.network, theirs.network) == 0
    assert distance(ours.network, train(FedAvg, 1, adapter=adapter(), **RATES).network) > 1e-3


@pytest.mark.parametrize("index", [1, 2])
def test_the_factors_take_turns_and_each_round_is_exact(index, train, ragged_data):
    before, after = (train(RoLoRA, rounds, adapter=adapter(), **RATES) for rounds in (index, index + 1))
    (data := ragged_data()).setup()
    factor = "*lora_B" if index == 2 else "*lora_A"
    phase, key = before.phase(f"head|{factor}"), (1, "train", index, "all")
    start = tensors(before.network)
    clients, _ = map_clients(data, lambda own: by_phase(before.network, start, phase, own, key), index)
    counts = data.make_round(index).examples.counts
    expected, found = weighted_mean(clients, counts), tensors(after.network)
    update = distance(expected, start)
    assert update > 1e-3
    assert distance(expected, found) < 1e-10 * update
    assert {n for n, t in found.items() if not torch.equal(t, start[n])} == phase.trainable
    (product,) = weighted_mean([{"": each["fc1.lora_B"] @ each["fc1.lora_A"]} for each in clients], counts).values()
    assert (product - found["fc1.lora_B"] @ found["fc1.lora_A"]).abs().max() < 1e-12


@pytest.mark.parametrize(("rounds", "sent"), [(1, B), (2, A), (3, B)])
def test_a_client_sends_one_factor_and_the_head(rounds, sent, train):
    ledger = train(RoLoRA, rounds, adapter=adapter()).accounting.ledger
    assert ledger.up == 6 * 64 * (sent + HEAD + LOSS)
    assert ledger.down == 6 * 64 * (A + B + HEAD)


@pytest.mark.parametrize("kind", [RoLoRA, FedExLoRA, FLoRA])
def test_a_that_stays_as_drawn_is_refused(kind, ragged_data):
    line = rf"^model\.adapter\.freeze_a must be false with {kind.__name__}, whose clients train A and B, got true$"
    with pytest.raises(PflError, match=line):
        built(partial(kind, adapter=adapter(freeze_a=True)), ragged_data())
