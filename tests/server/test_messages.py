import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.server import nbytes, pack_tensors, packed_bits, unpack_tensors

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool]


def same(one, other):
    """Whether two tensors are equal bit for bit, in which NaN is itself and -0.0 is not 0.0."""
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


def stored_bits(tree):
    """Bits of the real encoding."""
    forms = [form if isinstance(form, tuple) else (form,) for form in pack_tensors(tree).values()]
    return sum(8 * part.nbytes for form in forms for part in form[:2])


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("-inf"), 5e-324]), max_size=40),
    st.sampled_from([0, 20]),
    st.sampled_from(DTYPES),
)
def test_what_is_restored_is_what_was_stored_bit_for_bit(values, zeros, dtype):
    numbers = torch.tensor([*values, *[0.0] * zeros], dtype=torch.float64)
    tensor = numbers.to(dtype) if dtype.is_floating_point else (numbers != 0).to(dtype)
    trees = {"vector": tensor, "matrix": tensor[None, :, None], "number": tensor[:1].sum()}
    assert all(same(tensor, trees[name]) for name, tensor in unpack_tensors(pack_tensors(trees)).items())


@pytest.mark.parametrize("entries", [0, 1, 8, 63, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_size_by_formula_is_that_of_the_encoding(entries, dtype):
    counts = [0, min(1, entries), entries // 2, entries * 19 // 20, entries]  # the last but one saves least
    stack = torch.stack([(torch.arange(entries) < count).to(dtype) for count in counts])
    models = {"w": stack, "number": stack[:, :1].sum(1)}
    rows = [{name: tensors[row] for name, tensors in models.items()} for row in range(len(counts))]
    assert packed_bits(models).tolist() == [stored_bits(row) for row in rows]
    width = stack.element_size()
    sizes = [min(entries * width, -(-entries // 8) + count * width) for count in counts]
    assert packed_bits({"w": stack}).tolist() == [8 * size for size in sizes]


def test_no_tensors_take_no_bits():
    assert packed_bits({}) == 0


def test_minus_zero_is_a_value():
    assert packed_bits({"w": -torch.zeros(1, 4)}) == 8 * 16 == stored_bits({"w": -torch.zeros(4)})
    assert packed_bits({"w": torch.zeros(1, 4)}) == 8 == stored_bits({"w": torch.zeros(4)})


def test_a_dense_message_has_the_bytes_of_its_tensors():
    assert nbytes({"w": torch.zeros(3, 5), "count": torch.zeros((), dtype=torch.int64)}) == 3 * 5 * 4 + 8
