import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.server import nbytes, pack, restored, stored, unpack
from pfl_lightning.server.messages import Packed, delivered

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool]


def same(one, other):
    """Whether two tensors are equal bit for bit, in which NaN is itself and -0.0 is not 0.0."""
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("-inf"), 5e-324]), max_size=40),
    st.sampled_from([0, 20]),
    st.sampled_from(DTYPES),
)
def test_what_is_unpacked_is_what_was_packed_bit_for_bit(values, zeros, dtype):
    numbers = torch.tensor([*values, *[0.0] * zeros], dtype=torch.float64)
    tensor = numbers.to(dtype) if dtype.is_floating_point else (numbers != 0).to(dtype)
    trees = {"vector": tensor, "matrix": tensor[None, :, None], "number": tensor[:1].sum()}
    arrived = unpack(pack(trees))
    assert all(same(arrived[name], trees[name]) for name in trees)
    assert all(same(tensor, trees[name]) for name, tensor in restored(stored(trees)).items())


@pytest.mark.parametrize("entries", [1, 8, 63, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_size_is_the_smaller_one_of_dense_and_bitmap_with_values(entries, dtype):
    for values in {0, 1, entries // 2, entries}:
        tensor = torch.zeros(entries, dtype=dtype)
        tensor[:values] = 1
        width = tensor.element_size()
        assert nbytes(pack({"w": tensor})) == min(entries * width, -(-entries // 8) + values * width)


def test_minus_zero_is_a_value():
    assert pack({"w": -torch.zeros(4)})["w"].nbytes == 16
    assert isinstance(pack({"w": torch.zeros(4)})["w"], Packed)


def test_each_row_is_a_message_of_its_own():
    stacks = {"w": torch.tensor([[0.0] * 15 + [2.0], [1.0] * 16, [0.0] * 16]), "loss": torch.ones(3)}
    arrived, sent = delivered(stacks)
    assert all(same(arrived[name], stacks[name]) for name in stacks)
    assert sent == (2 + 4) + 16 * 4 + 2 + 3 * 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [1, 30, 1000])
def test_a_stack_arrives_as_its_rows_would_however_many_are_packed_at_once(block, dtype, monkeypatch):
    monkeypatch.setattr("pfl_lightning.server.messages.BLOCK", block)
    values = torch.randn(7, 3, 5) * (torch.rand(7, 3, 5) < torch.linspace(0, 1, 7)[:, None, None])
    stacks = {"w": values.to(dtype), "none": torch.zeros(7, 0, dtype=dtype), "number": values[:, 0, 0].to(dtype)}
    arrived, sent = delivered(stacks)
    messages = [pack({name: stack[row] for name, stack in stacks.items()}) for row in range(7)]
    assert sent == sum(map(nbytes, messages))
    assert all(same(arrived[name], stack) for name, stack in stacks.items())
    assert all(same(unpack(message)["w"], stacks["w"][row]) for row, message in enumerate(messages))
