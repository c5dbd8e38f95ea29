from functools import partial

import pytest
import torch

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, start_network

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
    given = torch.full((4, 6), 0.5)
    tensors, random = start(pretrained={"fc1.weight": given, "embedding.weight": torch.ones(2, 2)}), start()
    assert torch.equal(tensors["fc1.weight"], given)
    assert tensors["fc1.weight"].data_ptr() != given.data_ptr()
    assert all(torch.equal(tensors[name], random[name]) for name in tensors if name != "fc1.weight")


def test_a_pretrained_tensor_of_another_shape_is_refused():
    with pytest.raises(PflError, match=r"model\.network: MLP has fc1\.weight of shape \(4, 6\); .*shape \(4, 7\)"):
        start(pretrained={"fc1.weight": torch.ones(4, 7)})
