from dataclasses import replace

import pytest
import torch
from fakes.loops import participants
from fakes.methods import built, distance, row, rows
from fakes.torch_sgd import by_phase
from torch import nn
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedALT, Local
from pfl_lightning.models import LoRA, ViT
from pfl_lightning.server import SecureAggregator

pytestmark = pytest.mark.usefixtures("float64")
LAYERS = ("fc1", "fc2")
ADAPTER = LoRA(2, alpha=6.0, targets=[*LAYERS])
ENDS = ("A", "B")
OWN = [f"{layer}.lora_{end}" for layer in LAYERS for end in (*ENDS, "gate")] + ["fc3.weight", "fc3.bias"]


class Both(nn.Module):
    """An MLP with two adapters in each hidden layer, of which one is frozen, and gates between them."""

    def __init__(self, frozen, own, rest):
        super().__init__()
        self.frozen = frozen
        self.rest = rest
        self.own = nn.ParameterDict({name.replace(".", "_"): nn.Parameter(own[name].clone()) for name in OWN})

    def forward(self, inputs):
        x = inputs.flatten(1)
        for layer in LAYERS:
            own = [self.own[f"{layer}_lora_{end}"] for end in (*ENDS, "gate")]
            gate = (x @ own[2].T).exp()
            gate = gate / gate.sum(1, keepdim=True)
            others = x @ self.rest[f"{layer}.lora_A"].T @ self.rest[f"{layer}.lora_B"].T
            mixed = gate[:, :1] * others + gate[:, 1:] * (x @ own[0].T @ own[1].T)
            x = F.relu(F.linear(x, self.frozen[f"{layer}.weight"], self.frozen[f"{layer}.bias"]) + 3.0 * mixed)
        return F.linear(x, self.own["fc3_weight"], self.own["fc3_bias"])


def rest_of(adapters, client, like):
    """The mean of the adapters of all other clients among some; zeros of nobody's."""
    others = [own for other, own in adapters.items() if other != client]
    names = [name for name in OWN if name.endswith(("_A", "_B"))]
    if not others:
        return {name: torch.zeros_like(like[name]) for name in names}
    return {name: sum(own[name] for own in others) / len(others) for name in names}


@pytest.mark.parametrize("secure", [False, True], ids=["clear", "secure"])
def test_rounds_of_most_clients_are_a_plain_loop(secure, pool_of, fit, backend):
    data = pool_of(3)
    aggregator = SecureAggregator(limit=1000.0) if secure else None
    method = built(FedALT, data, adapter=ADAPTER, epochs=2, momentum=0.5, backend=backend, aggregator=aggregator)
    frozen = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    models = {client: {name: frozen[name] for name in OWN} for client in range(6)}
    names = frozenset(name for name, _ in Both(frozen, models[0], {}).named_parameters())
    phase = replace(method.phase("head", 2), trainable=names)
    adapters = {}
    fit(method, data, 4, bare=True)
    for index in range(4):
        key = (1, "train", index, "all")
        trained = {}
        for client, own in participants(data, index):
            model = Both(frozen, models[client], rest_of(adapters, client, frozen))
            after, _ = by_phase(model, model.state_dict(), phase, own, key)
            trained[client] = {name: after[f"own.{name.replace('.', '_')}"] for name in OWN}
        models |= trained
        adapters |= trained
    assert 3 < len(adapters) < 6, "some come later, and some never"
    close = 1e-5 if secure else 1e-10
    for client in range(6):
        assert distance(models[client], row(method, client)) < close
    received = method.with_rest(method.received(torch.arange(6)))
    for client in range(6):
        found = {
            name.replace("rest", "lora"): tensor for name, tensor in received.client(client).items() if "rest" in name
        }
        assert distance(rest_of(adapters, client, frozen), found) < close
    assert method.server.tree["counted"] == len(adapters)
    assert rows(method)["counted"].tolist() == [client in adapters for client in range(6)]


def test_two_clients_swap_their_adapters(ragged_data, fit):
    data = ragged_data(num_clients=2)
    method = built(FedALT, data, adapter=ADAPTER)
    fit(method, data, 2, bare=True)
    received = method.with_rest(method.received(torch.arange(2)))
    for client in range(2):
        for layer in LAYERS:
            for end in ENDS:
                found = received.client(client)[f"{layer}.rest_{end}"]
                torch.testing.assert_close(found, row(method, 1 - client)[f"{layer}.lora_{end}"])


def test_with_a_gate_for_ones_own_adapters_alone_it_is_local_lora(train, monkeypatch):
    monkeypatch.setattr(F, "softmax", lambda logits, dim: torch.tensor([0.0, 1.0]).expand_as(logits))
    method = train(FedALT, 2, adapter=ADAPTER)
    local = train(Local, 2, adapter=ADAPTER)
    assert rows(method)["fc1.lora_B"].abs().max() > 1e-2
    names = [name for name in OWN if "gate" not in name]
    assert distance({name: rows(local)[name] for name in names}, rows(method)) < 1e-12


def test_a_client_is_evaluated_with_both_adapters(train):
    method = train(FedALT, 2, adapter=ADAPTER)
    inputs = torch.randn(4, 1, 16, 16)
    adapters = {client: row(method, client) for client in range(6)}
    for client in range(6):
        rest = rest_of(adapters, client, {})
        expected = Both(method.network.state_dict(), adapters[client], rest)(inputs)
        torch.testing.assert_close(method.client(client)(inputs), expected)
    assert method.eval_models == ("personal",)


def test_adapters_of_a_client_alone_are_sent(train):
    """Six clients; layers of 256 by 8 and 8 by 5, adapters of rank 2; a number each way, and a loss."""
    ledger = train(FedALT, 1, adapter=ADAPTER).accounting.ledger
    assert ledger.down == 6 * 64 * (2 * (256 + 8 + 8 + 5) + 1)
    assert ledger.up == 6 * 64 * (2 * (256 + 8 + 8 + 5) + 1 + 1)


def test_a_gate_is_of_each_token(train, ragged_data):
    """Two backends agree on a transformer, whose tokens are not alone."""
    network = lambda shape, classes: ViT(shape, classes, patch=8, depth=1, width=6, heads=2)  # noqa: E731
    one, many = (train(FedALT, 2, network=network, adapter=LoRA(2), backend=each) for each in ("sequential", "batched"))
    assert distance(rows(one), rows(many)) < 1e-10
    start = rows(built(FedALT, ragged_data(), network=network, adapter=LoRA(2)))
    gates = [name for name in start if name.endswith("gate")]
    assert min(float((start[name] - rows(one)[name]).abs().max()) for name in gates) > 0


def test_two_adapters_are_not_one_of_peft(ragged_data):
    method = built(FedALT, ragged_data(), adapter=ADAPTER)
    with pytest.raises(PflError, match=r"^as: peft is not possible with FedALT's personal model; allowed: [^\n]*$"):
        method.client(0, merged=False)


def test_a_fixed_factor_is_one_line():
    line = "^model.adapter.freeze_a must be false with FedALT, whose clients train A and B, got true$"
    with pytest.raises(PflError, match=line):
        FedALT(adapter=LoRA(freeze_a=True))
