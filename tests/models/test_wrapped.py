from collections import OrderedDict
from functools import partial

import pytest
import torch
from fakes.networks import Nested, Normed, Opaque, Plain, frozen_and_tied, residual_in_place
from torch import nn
from torchvision.models import mobilenet_v3_small, resnet18

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedRep
from pfl_lightning.models import Network, start_network
from pfl_lightning.tasks import Classification
from pfl_lightning.tree import movable

IMAGES = (3, 32, 32)


def start(make, input_shape=(4,), num_classes=3, input_kind="numbers", seed=0):
    return start_network(make, input_shape, num_classes, seed, {}, input_kind)


def sequential(input_shape, num_classes):
    return nn.Sequential(nn.Linear(input_shape[0], 5), nn.ReLU(), nn.Linear(5, num_classes))


class Keeping(Plain):
    """Keeps its features, as for a plot of them."""

    def forward(self, inputs):
        self.features = self.fc1(inputs).relu()
        return self.fc2(self.features)


def lazy(num_classes):
    return nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(num_classes))


@pytest.mark.parametrize(
    ("make", "input_shape", "layers", "units"),
    [
        (Plain, (4,), ["Plain", "fc2"], ["fc1", "fc2"]),
        (Opaque, (4,), ["Opaque"], ["fc1", "fc2"]),
        (
            Nested,
            (4,),
            ["Nested", "classifier_0", "classifier_1", "classifier_2"],
            ["features.0", "classifier.0", "classifier.2"],
        ),
        (Normed, (4,), ["Normed", "fc2"], ["fc1", "norm", "fc2"]),
        (sequential, (4,), ["0", "1", "2"], ["0", "2"]),
        (lazy, (4,), ["0", "1", "2"], ["0", "2"]),
        (residual_in_place, (4,), ["0", "1", "2"], ["0.fc", "1.fc", "2"]),
        (mobilenet_v3_small, IMAGES, ["MobileNetV3", *(f"classifier_{n}" for n in range(4))], None),
        (resnet18, IMAGES, ["ResNet", "fc"], None),
    ],
)
def test_a_module_is_cut_into_what_it_ends_with_and_the_rest(make, input_shape, layers, units):
    network = start(make, input_shape)
    assert [name for name, _ in network.named_children()] == layers
    assert units is None or network.trainable_layers == units


@pytest.mark.parametrize("make", [Plain, Opaque, Nested, Normed, Keeping, sequential, residual_in_place])
def test_a_wrapped_module_is_the_users_own_again_with_any_tensors(make):
    network, other, inputs = start(make).eval(), start(make, seed=1).eval(), torch.randn(5, 4)
    plain = make((4,), 3).eval()
    module = network.module_with(other.state_dict()).eval()
    assert type(module) is type(plain)
    assert {network.original_name(name) for name in network.state_dict()} == set(plain.state_dict())
    plain.load_state_dict(module.state_dict())
    assert torch.equal(plain(inputs), other(inputs))
    assert torch.equal(module(inputs), other(inputs))
    assert not torch.equal(module(inputs), network(inputs))


@pytest.mark.parametrize(
    ("make", "head", "modules"),
    [
        (Plain, 1, ["fc2"]),
        (Opaque, 1, ["fc2"]),
        (Opaque, "fc1", ["fc1"]),
        (Nested, 2, ["classifier.0", "classifier.2"]),
        (Nested, "classifier", ["classifier.0", "classifier.2"]),
        (Nested, "classifier.2", ["classifier.2"]),
        (Nested, ["unused", "classifier.2"], ["classifier.2", "unused"]),
    ],
)
def test_a_head_is_chosen_by_number_or_by_the_modules_own_names(make, head, modules):
    network = start(make)
    body, tensors = network.cut(head)
    assert sorted({network.original_name(name).rpartition(".")[0] for name in tensors}) == modules
    assert body | tensors == set(network.state_dict())


def test_a_head_that_is_not_there_gets_a_line_with_the_names_that_are():
    allowed = "allowed: 1 to 2, or some of features.0, classifier.0, classifier.2, the layers of Nested"
    with pytest.raises(PflError, match=rf"^model\.head: fc is not possible; {allowed}$"):
        start(Nested).cut("fc")


def test_layers_that_draw_at_random_or_run_alone_are_marked():
    marks = {name: (layer.draws_at_random, layer.without_vmap) for name, layer in start(Normed).named_children()}
    assert marks == {"Normed": (True, True), "fc2": (False, False)}  # vmap cannot update running statistics


def test_torchs_dropout_needs_no_mark():
    layers = start(lambda shape, classes: nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, classes)))
    assert [layer.draws_at_random for layer in layers] == [False] * 3


@pytest.mark.parametrize("make", [partial(Plain, hidden=7), lambda shape, classes: Plain(shape, classes, 7)])
def test_a_partial_and_a_function_of_two_arguments_make_networks(make):
    assert start(make).state_dict()["fc2.weight"].shape == (3, 7)


def ties(input_shape, num_classes):
    """Layers that could be cut, but for the two that are tied."""
    layers = {"0": nn.Linear(4, 4), "1": nn.ReLU(), "2": nn.Linear(4, 4), "3": nn.Linear(4, num_classes)}
    layers["2"].weight = layers["0"].weight
    return layers


@pytest.mark.parametrize("kind", [Network, lambda layers: nn.Sequential(*layers.values())])
def test_tied_layers_are_not_cut_apart(kind):
    network = start(lambda input_shape, num_classes: kind(ties(input_shape, num_classes)))
    assert len([*network.named_children()]) == 1
    assert {network.original_name(name) for name in movable(network) if "weight" in name} == {"0.weight", "3.weight"}


def test_frozen_layers_are_no_part_and_stay_in_the_module():
    network, other = (start(frozen_and_tied, seed=seed) for seed in (0, 1))
    parts = network.parts(1)
    assert network.trainable_layers == ["3.first", "3.second", "4"]
    assert parts["body"] == {"3.first.weight", "3.first.bias", "3.second.bias"}
    with pytest.raises(PflError, match=r"^model\.head: 1 is not possible; allowed: .*3\.first, 3\.second, 4"):
        network.cut("1")
    module = network.module_with(movable(other))
    assert module[3].second.weight is module[3].first.weight
    assert torch.equal(module[3].second.weight, other[3].first.weight)
    assert torch.equal(module[1].weight, network[1].weight)


class Wrong(nn.Module):
    """Does what its option says."""

    def __init__(self, act, width=3):
        super().__init__()
        self.act, self.fc = act, nn.Linear(4, width)

    def forward(self, inputs):
        return self.act(self.fc, inputs)


RETURN = "must return a tensor of numbers [batch, 3]"


class Broken(nn.Module):
    def __init__(self):
        raise ValueError("no such\n thing")


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Wrong(lambda fc, x: {"logits": fc(x)}), f"Wrong {RETURN}, got a dict with logits"),
        (lambda: Wrong(lambda fc, x: (fc(x), x)), f"Wrong {RETURN}, got a tuple"),
        (lambda: Wrong(lambda fc, x: fc(x).argmax(1)), f"Wrong {RETURN}, got a tensor [batch] of int64"),
        (lambda: Wrong(lambda fc, x: fc(x), 5), f"Wrong {RETURN}, got a tensor [batch, 5] of float32"),
        (lambda: Wrong(lambda fc, x: fc(x.mul_(2))), "Wrong must not change its inputs in place"),
        (partial(nn.Linear, 5, 3), "Linear does not take inputs of shape (4,): "),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.InstanceNorm1d(3)), "Sequential does not take inputs of shape (4,)"),
        (nn.Flatten, f"Flatten {RETURN}, got a tensor [batch, 4] of float32"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "Linear has no parameters that train"),
        (Broken, "Broken cannot be made: no such thing"),
        (lambda: 3, "<lambda> must make a torch module, got int"),
    ],
)
def test_what_is_no_classifier_gets_a_line(make, line):
    with pytest.raises(PflError) as refusal:
        start(make)
    assert str(refusal.value).startswith(f"model.network: {line}")
    assert "\n" not in str(refusal.value)


class Stack(nn.Module):
    """Blocks in a list, which see the inputs too; the first ones are frozen."""

    def __init__(self, frozen, reads=False, trains=False, head=None):
        super().__init__()
        self.fc1, self.fc2, self.reads = nn.Linear(4, 5), head or nn.Linear(5, 3), reads
        self.blocks = nn.ModuleList(nn.Bilinear(5, 4, 5) for _ in range(3))
        for part in (self.fc1, *self.blocks[:frozen]):
            part.requires_grad_(trains)

    def forward(self, inputs):
        hidden = self.fc1(inputs).tanh() + (self.blocks[0].bias if self.reads else 0)
        for block in self.blocks:
            hidden = block(hidden, inputs)
        return self.fc2(hidden)


def body_and_head():
    return nn.Sequential(Stack(1, head=nn.Identity()), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("make", "layers", "trained_blocks"),
    [
        (partial(Stack, 1), ["Stack_front", "Stack", "fc2"], 2),
        (partial(Stack, 2), ["Stack_front", "Stack", "fc2"], 1),
        (body_and_head, ["0_front", "0", "1"], 2),
    ],
)
def test_frozen_blocks_are_a_layer_in_front_of_those_that_train(make, layers, trained_blocks):
    network, plain, inputs = start(make), make(), torch.randn(7, 4)
    assert [name for name, _ in network.named_children()] == layers
    front, back, _ = network
    assert not movable(front)
    assert sum(parameter.numel() for parameter in back.parameters()) == 25 + trained_blocks * 105  # 25 are of fc1
    assert {network.original_name(name) for name in movable(network)} == movable(plain).keys()
    module = network.module_with({name: 2 * tensor for name, tensor in movable(network).items()})
    assert type(module) is type(plain)
    assert module.state_dict().keys() == plain.state_dict().keys()
    for tensor in movable(network).values():
        tensor *= 2
    torch.testing.assert_close(network(inputs), module(inputs))


class Read(nn.Module):
    """Adds the mean of the tokens' vectors."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(1000, 5)

    def forward(self, hidden, tokens):
        return hidden + self.vectors(tokens).mean(1)


class Reader(nn.Module):
    """Two blocks that read tokens, of which the first is frozen."""

    def __init__(self):
        super().__init__()
        self.words, self.fc = nn.Embedding(1000, 5), nn.Linear(5, 3)
        self.blocks = nn.ModuleList(Read() for _ in range(2))
        for part in (self.words, self.blocks[0]):
            part.requires_grad_(False)

    def forward(self, tokens):
        hidden = self.words(tokens).mean(1)
        for block in self.blocks:
            hidden = block(hidden, tokens)
        return self.fc(hidden)


def test_tokens_pass_frozen_blocks_unchanged_in_half_precision():
    network, tokens = start(Reader, (6, 1000), input_kind="tokens"), torch.randint(900, 1000, (7, 6))
    assert [name for name, _ in network.named_children()] == ["Reader_front", "Reader", "fc"]
    module = network.to(torch.bfloat16).module_with({})
    torch.set_default_dtype(torch.bfloat16)  # as Lightning does for bf16-true
    try:
        assert torch.equal(network(tokens), module(tokens))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("frozen", "options"), [(0, {}), (3, {}), (1, {"reads": True}), (1, {"trains": True})])
def test_a_module_without_a_frozen_block_or_that_looks_into_one_stays_one_layer(frozen, options):
    network = start(partial(Stack, frozen, **options))
    assert [name for name, _ in network.named_children()] == ["Stack", "fc2"]


def test_no_head_is_counted_from_a_last_layer_that_does_not_train():
    def network(frozen):
        layers = OrderedDict(body=nn.Linear(64, 8), more=nn.Linear(8, 8), classifier=nn.Linear(8, 10))
        if frozen:
            layers["classifier"].requires_grad_(False)
        return nn.Sequential(layers)

    with pytest.raises(PflError) as refused:
        FedRep(network=lambda *_: network(True)).build((64,), Classification().sized(10), 2)
    last = "classifier, the last layer of Sequential, does not train (requires_grad is False)"
    assert str(refused.value) == f"model.head must be the names of layers, since {last}"
    FedRep(network=lambda *_: network(True), head="more").build((64,), Classification().sized(10), 2)
    FedRep(network=lambda *_: network(False)).build((64,), Classification().sized(10), 2)
