import pytest
import torch
from torch import nn

from pfl_lightning.tree import Params, add_to, mix, movable, select

TREE = {"body.weight": torch.tensor([1.0]), "body.bias": torch.tensor([2.0]), "head.weight": torch.tensor([3.0])}


@pytest.fixture
def params():
    return Params(
        {"w": torch.arange(4.0).view(2, 2), "b": torch.tensor([5.0])},
        {"h": torch.arange(6.0).view(3, 2), "c": torch.tensor([7.0, 8.0, 9.0])},
    )


def as_lists(tree):
    return {name: tensor.tolist() for name, tensor in tree.items()}


def test_selection_keeps_the_order_of_the_tree():
    assert list(select(TREE, ["head.weight", "body.weight", "absent"])) == ["body.weight", "head.weight"]


def test_mix_multiplies_the_client_axis():
    # rows (1/2, 1/2) and (0, 1) of two senders with values (0, 2) and (4, 10)
    matrix = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    mixed = mix(matrix, {"x": torch.tensor([[[0.0, 2.0]], [[4.0, 10.0]]])})
    assert as_lists(mixed) == {"x": [[[2.0, 6.0]], [[4.0, 10.0]]]}


def test_mix_with_a_vector_has_no_client_axis():
    assert as_lists(mix(torch.tensor([0.25, 0.75]), {"x": torch.tensor([[0.0], [4.0]])})) == {"x": [3.0]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mix_averages_integers_as_floats(dtype):
    mixed = mix(torch.tensor([0.5, 0.5], dtype=dtype), {"batches": torch.tensor([3, 4])})
    assert mixed["batches"].dtype == dtype
    assert mixed["batches"] == 3.5


def test_mix_is_exact_in_mixed_precision():
    with torch.autocast("cpu", torch.bfloat16):
        mixed = mix(torch.tensor([0.5, 0.5]), {"x": torch.tensor([[1.0], [1.001]])})
    assert mixed["x"].item() == pytest.approx(1.0005, abs=1e-6)  # bfloat16 has 1 and 1.0078, nothing between


def test_client_has_shared_and_own_tensors(params):
    assert as_lists(params.client(1)) == {"w": [[0.0, 1.0], [2.0, 3.0]], "b": [5.0], "h": [2.0, 3.0], "c": 8.0}


def test_rows_slice_the_own_tensors_only(params):
    part = params.rows(1, 3)
    assert as_lists(part.shared) == as_lists(params.shared)
    assert as_lists(part.own) == {"h": [[2.0, 3.0], [4.0, 5.0]], "c": [8.0, 9.0]}


def test_params_select_from_both_trees(params):
    part = params.select({"b", "c"})
    assert (list(part.shared), list(part.own)) == (["b"], ["c"])


def test_owned_moves_shared_tensors_to_the_clients(params):
    owned = params.owned({"w", "h"}, 3)
    assert as_lists(owned.shared) == {"b": [5.0]}
    assert as_lists(owned.own) == {**as_lists(params.own), "w": [[[0.0, 1.0], [2.0, 3.0]]] * 3}


@pytest.mark.parametrize("clients", [1, 3])
def test_owned_tensors_are_nobody_elses(params, clients):
    params = params.rows(0, clients)
    before = as_lists(params.shared), as_lists(params.own)
    owned = params.owned({"w", "h"}, clients).own
    owned["w"][0] += 1
    owned["h"] += 1
    assert (as_lists(params.shared), as_lists(params.own)) == before
    assert torch.equal(owned["w"][1:], params.shared["w"].expand(clients - 1, 2, 2))


def test_trees_add_up_without_changing_what_was_added():
    total, part = {}, {"w": torch.ones(2)}
    for _ in range(3):
        add_to(total, part)
    assert as_lists(total) == {"w": [3.0, 3.0]}
    assert as_lists(part) == {"w": [1.0, 1.0]}


def test_what_lies_under_a_prefix_comes_back_without_it_and_nothing_is_copied():
    one, other = torch.zeros(2), torch.ones(3, 2)
    params = Params({"w": one, "anchor.w": one}, {"b": other, "personal.w": other, "personal.b": other})
    personal = params.under("personal")
    assert (personal.shared, set(personal.own)) == ({}, {"w", "b"})
    assert personal.own["w"] is other
    assert params.under("anchor").shared["w"] is one
    assert params.under("anch").tree == {}


def test_what_is_put_beside_takes_the_place_of_what_lay_there():
    one, other = torch.zeros(2), torch.ones(3, 2)
    params = Params({"w": one}, {"personal.w": other, "personal.old": other})
    beside = params.beside("personal", Params({"w": one}, {"b": other}))
    assert set(beside.shared) == {"w", "personal.w"}
    assert set(beside.own) == {"personal.b"}
    assert beside.shared["personal.w"] is one
    assert set(params.own) == {"personal.w", "personal.old"}, "the other one stays as it is"
    assert set(beside.without(["w"]).tree) == {"personal.w", "personal.b"}


def test_what_may_move_has_neither_frozen_tensors_nor_second_names():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    module[2].weight = module[0].weight
    module[1].weight.requires_grad = False  # its bias trains, so its statistics move
    module[3].requires_grad_(False)
    module[4].bias.requires_grad = False
    found = movable(module)
    norm = ("1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert list(found) == ["0.weight", "0.bias", *norm, "2.bias", "4.weight"]
    assert found["0.weight"].data_ptr() == module[0].weight.data_ptr()
    assert not any(tensor.requires_grad for tensor in found.values())
