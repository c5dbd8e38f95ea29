"""Methods on adapters: LoRA as in peft, and what of it is shared and kept."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes.loops import map_clients
from fakes.methods import built, distance, tensors, weighted_mean
from fakes.torch_sgd import by_phase
from torch import nn

from pfl_lightning import load_method
from pfl_lightning.errors import PflError
from pfl_lightning.methods import SCAFFOLD, Ditto, FedAvg, FedPer, FedRep, Local
from pfl_lightning.models import LoRA, ViT
from pfl_lightning.tree import movable

SMALL = partial(ViT, patch=8, depth=2, width=6, heads=2)
RATES = {"optimizer": "AdamW", "epochs": 3, "lr": 0.01, "weight_decay": 0.1, "decay_biases": True}

pytestmark = pytest.mark.usefixtures("float64")


def peft_network(start=None, input_shape=(1, 16, 16), num_classes=3):
    """The small transformer with peft's LoRA, with the tensors of one of ours."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=["qkv", "out"], modules_to_save=["head"])
    network = peft.get_peft_model(SMALL(input_shape, num_classes), config)
    if start is not None:
        named = {name: start[ours(name)] for name in network.state_dict() if "original_module" not in name}
        network.load_state_dict(named, strict=False)
    return network


def ours(name):
    """Our name of one of peft's tensors."""
    for theirs in ("base_model.model.", "base_layer.", "modules_to_save.default."):
        name = name.replace(theirs, "")
    return name.replace(".default.weight", "")


@pytest.mark.slow
def test_local_training_is_that_of_pefts_lora_to_1e_6_of_the_update(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(FedAvg, data, network=SMALL, adapter=LoRA(3, alpha=6.0), **RATES)
    start = tensors(method.network)
    fit(method, data, 1, bare=True)
    theirs = peft_network(start)
    names = frozenset(name for name, each in theirs.named_parameters() if each.requires_grad)
    phase = replace(method.phase("all", 3), trainable=names)
    assert {ours(name) for name in names} == method.parts["all"]
    key, counts = (1, "train", 0, "all"), data.make_round(0).examples.counts
    clients, _ = map_clients(data, lambda own: by_phase(theirs, theirs.state_dict(), phase, own, key))
    expected = {ours(name): mean for name, mean in weighted_mean(clients, counts).items() if name in names}
    assert (update := distance(expected, start)) > 1e-3
    assert distance(expected, method.network) < 1e-6 * update


@pytest.mark.slow
def test_a_network_that_peft_has_made_is_taken_as_it_is(train, ragged_data):
    method = built(FedAvg, ragged_data(), network=SMALL, adapter=LoRA(3, alpha=6.0))
    start = tensors(method.network)
    one = train(FedAvg, 2, network=SMALL, adapter=LoRA(3, alpha=6.0), **RATES)
    other = train(FedAvg, 2, network=lambda: peft_network(start), **RATES)
    found = {ours(other.network.original_name(name)): tensor for name, tensor in movable(other.network).items()}
    assert found.keys() == method.parts["all"]
    assert distance(found, one.network) < 1e-10 * distance(found, start)
    assert one.accounting.ledger == other.accounting.ledger


A, B, HEAD = 2 * (18 + 18), 2 * (54 + 18), 21  # of two blocks; three by six and 18 or 6 by three


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "options", "sent", "kept"),
    [
        (FedAvg, {}, A + B + HEAD, 0),
        (FedAvg, {"freeze_a": True}, B + HEAD, 0),
        (partial(FedPer, keeps="*lora_B"), {}, A + HEAD, B),
        (FedPer, {}, A + B, HEAD),
        (Local, {}, 0, A + B + HEAD),
        (partial(FedRep, head_epochs=2), {}, A + B, HEAD),
        (Ditto, {}, A + B + HEAD, A + B + HEAD),
        (SCAFFOLD, {}, 2 * (A + B + HEAD), A + B + HEAD),
    ],
    ids=["FedIT", "FFA-LoRA", "FedSA-LoRA", "FedPer", "Local-LoRA", "FedRep", "Ditto", "SCAFFOLD"],
)
def test_only_adapters_and_head_are_sent_and_kept_on_every_backend(make, options, sent, kept, ragged_data, train):
    new = {"network": SMALL, "adapter": LoRA(3, **options)}
    one, many = (train(make, 2, backend=backend, **new) for backend in ("sequential", "batched"))
    start = built(make, ragged_data(), **new)
    assert distance(one, many) < 1e-10 * distance(one, start)
    assert one.accounting.ledger.down == 64 * 6 * sent
    assert one.clients.nbytes == 8 * 6 * kept
    moved = {name.rpartition(".")[2] for name in one.parts["all"] if "lora" in name}
    assert moved == ({"lora_B"} if options else {"lora_A", "lora_B"})


@pytest.mark.slow
@pytest.mark.parametrize("freeze_a", [False, True])
def test_a_checkpoint_leaves_out_frozen_weights_of_a_file_and_takes_no_others(freeze_a, ragged_data, resumed, tmp_path):
    torch.save(SMALL((1, 16, 16), 3).state_dict(), file := tmp_path / "base.pt")
    options = {"pretrained": str(file), "adapter": LoRA(3, freeze_a=freeze_a), "batch_size": 4}
    straight, method, last = resumed(partial(FedAvg, network=SMALL, **options), ragged_data)
    assert distance(straight, method) == 0
    assert distance(load_method(last), method) == 0
    held = torch.load(last, weights_only=True)["state_dict"]
    drawn = {name for name in method.network.state_dict() if name.endswith("lora_A")}
    assert {name.removeprefix("network.") for name in held} == method.parts["all"] | drawn
    with pytest.raises(PflError, match="a checkpoint without the frozen weights that its run was given"):
        FedAvg(network=SMALL, pretrained=str(last)).build_for(ragged_data())
    torch.save(SMALL((1, 16, 16), 3).state_dict(), file)
    with pytest.raises(PflError, match="the frozen weights are not those of the run, which its checkpoint leaves out"):
        load_method(last)
    file.unlink()
    with pytest.raises(PflError, match=r"model\.pretrained: cannot read"):
        load_method(last)


class Normed(nn.Module):
    """With BatchNorm, and one layer for the engine."""

    def __init__(self, input_shape, num_classes, affine=True):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(256, 5), nn.BatchNorm1d(5, affine=affine), nn.Linear(5, num_classes)
        self.norm.running_var.fill_(2.0)

    def forward(self, inputs):
        return 1.0 * self.fc2(self.norm(self.fc1(inputs.flatten(1))))


@pytest.mark.parametrize("affine", [True, False])
def test_frozen_batch_norm_keeps_its_statistics_and_clients_run_at_once(affine, ragged_data, train):
    options = {"network": partial(Normed, affine=affine), "adapter": LoRA(2, targets="fc1"), "head": "fc2", "lr": 0.1}
    one, many = (train(FedAvg, 2, backend=backend, **options) for backend in ("sequential", "auto"))
    assert all(choice.startswith("batched") for choice in many.engine.choices.values())
    assert distance(one, many) < 1e-10 * distance(one, built(FedAvg, ragged_data(), **options))
    assert (many.network.state_dict()["Normed.norm.running_var"] == 2).all()
