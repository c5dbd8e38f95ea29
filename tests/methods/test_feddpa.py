from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes.methods import built, distance
from fakes.networks import branching
from fakes.torch_sgd import by_phase
from torch import nn
from torch.nn import functional as F

from pfl_lightning.methods import FedAvg, FedDPA
from pfl_lightning.models import LoRA
from pfl_lightning.tree import Params

KEY = (1, "train", 0)
ADAPTER = LoRA(2, alpha=8.0, targets="fc1")
RATES = {"optimizer": "AdamW", "lr": 0.01, "weight_decay": 0.1, "adapter": ADAPTER}

pytestmark = pytest.mark.usefixtures("float64")


class Both(nn.Module):
    """An MLP with the shared adapter in its first layer, and a client's own one, as much of each as is said."""

    def __init__(self, tensors, own, shares):
        super().__init__()
        self.tensors, self.shares = tensors, shares
        self.lora_A, self.lora_B = (nn.Parameter(own[f"personal.fc1.{name}"]) for name in ("lora_A", "lora_B"))

    def features(self, inputs):
        w, x = self.tensors, inputs.flatten(1)
        adapted = self.shares[0] * x @ w["fc1.lora_A"].T @ w["fc1.lora_B"].T
        adapted = adapted + self.shares[1] * x @ self.lora_A.T @ self.lora_B.T
        z = F.relu(F.linear(x, w["fc1.weight"], w["fc1.bias"]) + 4.0 * adapted)
        return F.relu(F.linear(z, w["fc2.weight"], w["fc2.bias"]))

    def forward(self, inputs):
        return F.linear(self.features(inputs), self.tensors["fc3.weight"], self.tensors["fc3.bias"])


def midway(ragged_data, **options):
    """A method, its data, and what clients receive in the midst of a run, where no adapter is zero any more."""
    data = ragged_data()
    data.setup()
    method = built(partial(FedDPA, share=0.3, personal_epochs=3, **RATES), data, **options)
    received = method.received(torch.arange(6))
    moved = (Params({}, {name: t + 0.3 * torch.randn(t.shape) for name, t in tree.items()}).own for tree in received)
    return method, data, Params(*moved)


def test_a_clients_adapters_train_beside_a_share_of_the_received_ones_as_a_plain_loop(backend, ragged_data):
    method, data, received = midway(ragged_data, backend=backend)
    examples = data.make_round(0).examples
    trained, _ = method.local_update(examples, received, KEY)
    names = frozenset({"lora_A", "lora_B"})
    phase = replace(method.phase("*lora_*", 3), trainable=names)
    for row in range(len(examples)):
        before = received.client(row)
        model = Both({**method.network.state_dict(), **received.shared}, before, (0.7, 1.0))
        start, own = model.state_dict(), examples.rows(row, row + 1)
        expected, _ = by_phase(model, start, phase, own, (*KEY, "personal"))
        found = {name: trained.own[f"personal.fc1.{name}"][row] for name in names}
        update = distance(expected, start)
        assert update > 1e-2
        assert distance(expected, found) < 1e-10 * update


@torch.no_grad()
def test_a_sample_is_predicted_by_both_adapters_as_much_as_it_is_like_those_of_the_client(backend, ragged_data):
    method, data, received = midway(ragged_data, backend=backend)
    train, test = (data.tables[split].examples(torch.arange(6)) for split in ("train", "test"))
    params = method.eval_model("personal", train, received, ())
    (found,) = method.engine_of("personal", params).predictions(test, params)
    tensors, weights = {**method.network.state_dict(), **received.shared}, []
    for row, present in enumerate(found.present):
        model = partial(Both, tensors, received.client(row))
        known, seen = (each.rows(row, row + 1) for each in (train, test))
        features = model((0.0, 1.0)).features(known.gather(known.positions)[0])
        for x, outputs in zip(seen.gather(seen.positions)[0], found.outputs[row][present], strict=True):
            z = model((0.0, 1.0)).features(x[None])
            c = float(torch.stack([F.cosine_similarity(z[0], each, 0) for each in features]).mean())
            assert (model((1 - 0.3 * c, c))(x[None])[0] - outputs).abs().max() < 1e-12
            weights.append(c)
    assert max(weights) - min(weights) > 0.1


def test_the_shared_model_is_fedits_and_a_sample_unlike_all_others_is_predicted_by_it(train, ragged_data):
    dpa, fedit = train(FedDPA, 2, **RATES), train(FedAvg, 2, **RATES)
    assert distance(dpa.network, fedit.network) == 0
    sent = [(each.accounting.ledger.up, each.accounting.ledger.down) for each in (dpa, fedit)]
    assert sent[0] == sent[1], "a client's own adapters stay with it"
    inputs = torch.randn(5, 1, 16, 16)
    module = dpa.client(3, "personal", ragged_data())
    assert (module(inputs) - fedit.client(3, "global")(inputs)).abs().max() > 1e-6
    module.blend.likeness.zero_()
    assert (module(inputs) - fedit.client(3, "global")(inputs)).abs().max() < 1e-12


def test_a_network_that_runs_for_one_client_at_a_time_is_evaluated_so(train, ragged_data):
    scores = []
    for backend in ("auto", "sequential"):
        adapter = LoRA(2, targets="*fc1")
        method = train(FedDPA, 1, network=branching, backend=backend, **{**RATES, "adapter": adapter})
        scores += method.trainer.test(method, ragged_data(), verbose=False)
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)
