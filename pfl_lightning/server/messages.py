"""Models as they travel and as they are stored: zeros take one bit each, where that is shorter."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pfl_lightning.tree import Tree

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of a tensor's own width, by bytes
BIT_VALUES = tuple(1 << bit for bit in range(8))


class Packed(NamedTuple):
    """A tensor without its zeros.

    A zero is an entry whose bits are all zero; -0.0 is not, so that nothing is lost.

    Attributes:
        bitmap: One bit for each entry of the tensor, 1 if it is in ``values``; uint8, ``[entries / 8, rounded up]``.
        values: The entries that are not zero, in the order of the tensor, ``[values]``.
        shape: Shape of the tensor.
    """

    bitmap: Tensor
    values: Tensor
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap and the values."""
        return self.bitmap.nbytes + self.values.nbytes


Message = dict[str, Tensor | Packed]


def pack(tree: Mapping[str, Tensor]) -> Message:
    """Pack the tensors that are smaller so.

    Example:
        >>> message = pack({"sparse": torch.tensor([0.0, 0.5, 0.0, 0.0]), "dense": torch.tensor([1.0, 2.0])})
        >>> message["sparse"]
        Packed(bitmap=tensor([2], dtype=torch.uint8), values=tensor([0.5000]), shape=(4,))
        >>> nbytes(message)  # 1 and 4 for the first, 8 for the second
        13
    """
    forms = {name: (tensor, _packed(tensor)) for name, tensor in tree.items()}
    return {name: packed if packed.nbytes < dense.nbytes else dense for name, (dense, packed) in forms.items()}


def unpack(message: Mapping[str, Tensor | Packed]) -> Tree:
    """The tensors that were packed, bit for bit."""
    return {name: _unpacked(form) if isinstance(form, Packed) else form for name, form in message.items()}


def nbytes(message: Mapping[str, Tensor | Packed]) -> int:
    """Bytes that a message holds, without the names and shapes, which sender and receiver know."""
    return sum(form.nbytes for form in message.values())


def delivered(stacks: Mapping[str, Tensor]) -> tuple[Tree, int]:
    """Send a message with one row of each stack for every row, and unpack it.

    Args:
        stacks: ``[rows, ...]`` each, with at least one row.

    Returns:
        The stacks that arrive, equal bit for bit, and the bytes of all messages.
    """
    messages = [pack({name: stack[row] for name, stack in stacks.items()}) for row in range(_rows(stacks))]
    arrived = [unpack(message) for message in messages]
    return {name: torch.stack([tree[name] for tree in arrived]) for name in stacks}, sum(map(nbytes, messages))


def stored(tree: Mapping[str, Tensor]) -> dict[str, Any]:
    """Pack tensors for a checkpoint: into plain tuples, as it must not hold classes of ours."""
    return {name: tuple(form) if isinstance(form, Packed) else form for name, form in pack(tree).items()}


def restored(entries: Mapping[str, Any]) -> Tree:
    """The tensors of a checkpoint, bit for bit, whether or not they were packed."""
    return unpack({name: Packed(*form) if isinstance(form, tuple) else form for name, form in entries.items()})


def _rows(stacks: Mapping[str, Tensor]) -> int:
    return len(next(iter(stacks.values())))


def _packed(tensor: Tensor) -> Packed:
    flat = tensor.detach().reshape(-1)
    present = flat.view(WORDS[flat.element_size()]) != 0
    bits = pad(present.byte(), (0, -len(present) % 8)).view(-1, 8)
    bitmap = (bits * bits.new_tensor(BIT_VALUES)).sum(1, dtype=torch.uint8)
    return Packed(bitmap, flat[present], tuple(tensor.shape))


def _unpacked(packed: Packed) -> Tensor:
    bits = packed.bitmap[:, None] & packed.bitmap.new_tensor(BIT_VALUES)
    present = bits.flatten()[: prod(packed.shape)] != 0
    flat = packed.values.new_zeros(len(present))
    flat[present] = packed.values
    return flat.view(packed.shape)
