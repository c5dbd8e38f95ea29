from functools import partial

import pytest
import torch
from fakes.methods import distance, normed, tensors
from fakes.networks import Nested, Normed
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, VGG, ExtendedLinear, start_network
from pfl_lightning.tree import BATCH_NORM

MAKE = partial(MLP, hidden=(4,))


def start(seed=0, pretrained=None):
    return start_network(MAKE, (6,), 3, seed, pretrained or {}).state_dict()


def test_a_seed_gives_one_network_whatever_was_drawn_before():
    first = start(seed=1)
    torch.rand(7)
    before = torch.random.get_rng_state()
    again, other = start(seed=1), start(seed=2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc1.weight"], other["fc1.weight"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_pretrained_tensors_take_the_place_of_random_ones():
    pretrained = torch.full((4, 6), 0.5)
    tensors, random = start(pretrained={"fc1.weight": pretrained, "embedding.weight": torch.ones(2, 2)}), start()
    assert tensors["fc1.weight"].data_ptr() != pretrained.data_ptr()
    torch.testing.assert_close(tensors, {**random, "fc1.weight": pretrained}, rtol=0, atol=0)


def test_a_pretrained_tensor_of_another_shape_is_refused():
    with pytest.raises(PflError, match=r"model\.network: MLP has fc1\.weight of shape \(4, 6\); .*shape \(4, 7\)"):
        start(pretrained={"fc1.weight": torch.ones(4, 7)})


@pytest.mark.parametrize(
    ("make", "shape"),
    [(normed, (6,)), (Normed, (6,)), (partial(VGG, convolutions=[4, "M", 4, "M", 4], batch_norm=True), (3, 4, 4))],
    ids=["layers", "module", "VGG"],
)
def test_a_mini_batch_of_one_value_per_channel_uses_running_statistics(make, shape):
    network = start_network(make, shape, 3, 0, {})
    norm = [layer for layer in network.modules() if isinstance(layer, BATCH_NORM)][-1]
    network.train()(torch.rand(5, *shape))
    before = tensors(norm)
    assert network(torch.rand(1, *shape)).isfinite().all()
    pixel = torch.rand(1, len(norm.weight), *[1] * (len(shape) - 1))
    outputs = norm(pixel)
    assert distance(before, norm) == 0
    assert norm.training
    assert torch.equal(outputs, norm.eval()(pixel))


class Gated(ExtendedLinear):
    """A layer with a second one, which decides how much of each output is let through."""

    def __init__(self, layer):
        super().__init__(layer)
        self.gate = nn.Linear(layer.in_features, layer.out_features)

    def forward(self, inputs):
        return super().forward(inputs) * self.gate(inputs).sigmoid()


@pytest.mark.parametrize(("make", "layer"), [(MAKE, "fc2"), (Nested, "classifier.2")])
def test_an_extended_network_has_the_same_tensors_and_more_which_belong_to_the_body(make, layer):
    plain, network, other = (start_network(make, (6,), 3, seed, {}, "numbers", extend) for seed, extend in STARTS)
    before, after = plain.state_dict(), network.state_dict()
    added = {f"{layer.replace('.', '_')}.gate.{name}" for name in ("weight", "bias")}
    assert after.keys() == before.keys() | added
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not any(torch.equal(after[name], other.state_dict()[name]) for name in added)
    assert (network.cut(1)[1], network.cut(1)[0]) == (plain.cut(1)[1], plain.cut(1)[0] | added)
    module, inputs = network.module_with(after), torch.randn(2, 6)
    assert f"{layer}.gate.weight" in module.state_dict()
    gate = module.get_submodule(layer).gate(nn.Sequential(*list(plain.children())[:-1])(inputs)).sigmoid()
    torch.testing.assert_close(module(inputs), plain(inputs) * gate)


def gate(network):
    network.extend_head(1, Gated)


STARTS = ((1, None), (1, gate), (2, gate))
