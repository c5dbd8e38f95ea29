from functools import partial

import pytest
import torch
from fakes.networks import Plain, Tied, hooked, normalised_weights
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, LoRA, ViT, start_network
from pfl_lightning.tree import movable

SMALL = partial(ViT, patch=8, depth=2, width=6, heads=2)
ATTENTION = [f"block{number}.attention.{layer}" for number in (1, 2) for layer in ("qkv", "out")]


def adapted(adapter=None, make=SMALL, head=1):
    return start_network(make, (1, 16, 16), 3, 0, {}, extend=adapter and partial(adapter.add_to, head=head))


def targets(network):
    return [name.removesuffix(".lora_B") for name in movable(network) if name.endswith(".lora_B")]


@pytest.mark.parametrize(
    ("patterns", "make", "head", "layers"),
    [
        (None, SMALL, 1, ATTENTION),
        ("*.qkv", SMALL, 1, ATTENTION[::2]),
        (["block2.*", "patches.*"], SMALL, 1, ["patches.linear", *ATTENTION[2:], "block2.fc1", "block2.fc2"]),
        ("fc1", partial(MLP, hidden=(4,)), 1, ["fc1"]),
        ("fc[12]", partial(MLP, hidden=(4, 5)), "fc3", ["fc1", "fc2"]),
        ("fc1", Plain, 1, ["Plain.fc1"]),
    ],
)
def test_linear_layers_are_adapted_by_name_and_all_but_the_head_is_frozen(patterns, make, head, layers):
    adapter = LoRA(3, targets=patterns)
    network, plain, inputs = adapted(adapter, make, head), adapted(make=make), torch.randn(4, 1, 16, 16)
    adapters = {f"{name}.{tensor}" for name in layers for tensor in ("lora_A", "lora_B")}
    assert {*movable(network)} == adapters | plain.cut(head)[1]
    assert torch.equal(network(inputs), plain(inputs)), "B is zero"
    assert torch.equal(network(inputs), adapted(adapter, make, head)(inputs))


def test_what_an_adapter_adds_is_its_product_with_the_inputs_by_alpha_over_rank():
    network = adapted(LoRA(2, alpha=5.0, targets="fc1"), partial(MLP, hidden=(4,)))
    layer, inputs = network.fc1, torch.randn(7, 256)
    torch.nn.init.normal_(layer.lora_B)
    expected = inputs @ (layer.weight + 2.5 * layer.lora_B @ layer.lora_A).T + layer.bias
    torch.testing.assert_close(layer(inputs), expected)


def test_dropout_is_in_front_of_the_adapter_alone_and_only_in_training():
    network, inputs = adapted(LoRA(2, dropout=1.0, targets="fc1"), partial(MLP, hidden=(4,))), torch.randn(7, 256)
    torch.nn.init.normal_(network.fc1.lora_B)
    plain = inputs @ network.fc1.weight.T + network.fc1.bias
    torch.testing.assert_close(network.train().fc1(inputs), plain)
    assert (network.eval().fc1(inputs) - plain).abs().max() > 0.1


def test_a_frozen_a_does_not_move():
    names = {f"{layer}.lora_B" for layer in ATTENTION}
    assert {*movable(adapted(LoRA(2, freeze_a=True)))} == names | {"head.weight", "head.bias"}


def test_an_adapted_module_of_ones_own_is_a_module_of_its_own_again():
    network, inputs = adapted(LoRA(2, targets="fc1"), Plain), torch.rand(2, 1, 16, 16)
    module = network.module_with({name: torch.ones_like(tensor) for name, tensor in movable(network).items()})
    assert type(module) is Plain
    assert {"fc1.weight", "fc1.lora_A", "fc1.lora_B"} <= module.state_dict().keys()
    assert torch.equal(module.fc1.weight, network.Plain.fc1.weight)
    layer, flat = module.fc1, inputs.flatten(1)
    torch.testing.assert_close(layer(flat), flat @ layer.weight.T + layer.bias + 8.0 * 2 * flat.sum(1, keepdim=True))


class Encoder(nn.Module):
    """torch's encoder on rows of images, with a mask if it is asked for."""

    def __init__(self, batch_first=True, mask="none", nested=False, dropout=0.0):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 8, dropout, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.fc, self.batch_first, self.mask, self.nested = nn.Linear(16, 3), batch_first, mask, nested

    def forward(self, inputs):
        rows = inputs[:, 0] if self.batch_first else inputs[:, 0].transpose(0, 1)
        causal = torch.ones(16, 16, dtype=torch.bool).triu(1)
        masks = {
            "none": {},
            "causal": {"mask": causal},
            "heads": {"mask": causal.expand(2 * len(inputs), 16, 16)},
            "padding": {"src_key_padding_mask": inputs[:, 0, 0] > 1},
            "padding at the end": {"src_key_padding_mask": torch.arange(16) > 8 + 4 * inputs[:, 0, 0, :1].tanh()},
            "both": {"mask": causal, "src_key_padding_mask": (inputs[:, 0, 0] > 1) & (torch.arange(16) > 0)},
        }
        found = self.encoder(rows, **masks[self.mask])
        if self.nested:  # then torch's fused layers return zeros for padding
            return self.fc(found[:, 0])
        return self.fc(found.mean(1 if self.batch_first else 0))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", ["none", "causal", "heads", "padding", "both"])
def test_torchs_attention_is_adapted_where_it_uses_its_two_layers(batch_first, mask, float64):
    network, plain = (adapted(given, partial(Encoder, batch_first, mask)) for given in (LoRA(2), None))
    layers = [f"Encoder.encoder.layers.{number}.self_attn.{part}_proj" for number in (0, 1) for part in ("out", "in")]
    assert sorted(targets(network)) == sorted(layers)
    inputs, module = torch.randn(4, 1, 16, 16), plain.module_with({})
    torch.testing.assert_close(network(inputs), plain(inputs))
    for name in layers:
        layer = network.get_submodule(name)
        torch.nn.init.normal_(layer.lora_B)
        theirs = module.get_submodule(name.removeprefix("Encoder.").rpartition(".")[0])
        weight = theirs.in_proj_weight if name.endswith("in_proj") else theirs.out_proj.weight
        with torch.no_grad():
            weight += 8.0 * layer.lora_B @ layer.lora_A
    for training in (True, False):  # torch fuses the layers in evaluation
        with torch.set_grad_enabled(training):
            torch.testing.assert_close(network.train(training)(inputs), module.train(training)(inputs))


def test_neither_attention_nor_adapters_drop_anything_in_evaluation():
    network = adapted(LoRA(2, dropout=0.5), partial(Encoder, dropout=0.5))
    without = adapted(LoRA(2), Encoder)
    for name in targets(network):
        torch.nn.init.normal_(network.get_submodule(name).lora_B)
    without.load_state_dict(network.state_dict())
    inputs = torch.randn(4, 1, 16, 16)
    torch.testing.assert_close(network.eval()(inputs), without.eval()(inputs))
    assert (network.train()(inputs) - without(inputs)).abs().max() > 1e-2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("targets", [None, "*.linear1"])
def test_an_encoder_that_makes_nested_tensors_is_adapted(targets):
    network, plain = (
        adapted(given, partial(Encoder, mask="padding at the end", nested=True))
        for given in (LoRA(2, targets=targets), None)
    )
    inputs = torch.randn(4, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(inputs), plain.eval()(inputs))


class Twice(nn.Module):
    """Uses one attention in two places, one layer in two, and one weight in two layers."""

    def __init__(self):
        super().__init__()
        attention, layer = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 16)
        self.blocks = nn.ModuleList(nn.ModuleDict({"attention": attention, "fc": layer}) for _ in range(2))
        self.tied, self.head = Tied(16), nn.Linear(16, 3)

    def forward(self, inputs):
        rows = inputs[:, 0]
        for block in self.blocks:
            rows = block["fc"](block["attention"](rows, rows, rows, need_weights=False)[0])
        return self.head(self.tied(rows).mean(1))


@pytest.mark.parametrize(
    ("make", "targets"),
    [
        (Plain, "fc1"),
        (hooked, "1"),
        (Encoder, None),
        (Twice, ["*.attention.*", "*.fc", "tied.first"]),
        (Twice, ["*.in_proj", "tied.*"]),
    ],
)
def test_merged_adapters_leave_the_module_that_was_there_with_the_same_outputs(make, targets, float64):
    adapter, inputs = LoRA(2, targets=targets), torch.randn(4, 1, 16, 16)
    network, plain = adapted(adapter, make).eval(), adapted(make=make).module_with({}).eval()
    for layer in [layer for layer in network.modules() if hasattr(layer, "lora_B")]:
        torch.nn.init.normal_(layer.lora_B)
    merged = adapter.merge(network.module_with({})).eval()
    assert [type(each) for each in merged.modules()] == [type(each) for each in plain.modules()]
    assert (network(inputs) - plain(inputs)).abs().max() > 1e-3
    torch.testing.assert_close(merged(inputs), network(inputs))
    if make is not Twice:  # what was tied to an adapted weight is so no more
        plain.load_state_dict(merged.state_dict())
        torch.testing.assert_close(plain(inputs), network(inputs))


class Attending(nn.Module):
    """Ends with an attention."""

    def __init__(self):
        super().__init__()
        self.fc, self.attention = nn.Linear(16, 3), nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, inputs):
        rows = self.fc(inputs[:, 0])
        return self.attention(rows, rows, rows)[0].mean(1)


IN_HEAD = " of the head, which trains without adapters; allowed: patterns of some of "


@pytest.mark.parametrize(
    ("patterns", "make", "head", "line"),
    [
        (
            None,
            MLP,
            1,
            "*[aA]ttn*.*, *[aA]ttention*.* matches no linear layer of MLP; allowed: patterns of some of f",
        ),
        (
            "query",
            SMALL,
            1,
            "query matches no linear layer of ViT; allowed: patterns of some of patches.linear",
        ),
        ("fc*", partial(MLP, hidden=(4,)), 1, f"fc* matches fc2{IN_HEAD}fc1"),
        ("fc1", partial(MLP, hidden=()), 1, f"fc1 matches fc1{IN_HEAD}none"),
        ("3", normalised_weights, ["1"], "3 matches no linear layer of Sequential; allowed: patterns of some of none"),
        ("*.in_proj", Attending, ["attention"], f"*.in_proj matches attention.in_proj{IN_HEAD}fc"),
    ],
)
def test_targets_that_are_not_there_or_in_the_head_get_a_line(patterns, make, head, line):
    with pytest.raises(PflError) as refusal:
        adapted(LoRA(targets=patterns), make, head)
    assert str(refusal.value).startswith(f"model.adapter.targets: {line}")
