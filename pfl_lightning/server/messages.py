"""Models as they travel and as they are stored: zeros take one bit each, where that is shorter."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pfl_lightning.tree import Tree

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of a tensor's own width, by bytes
BIT_VALUES = tuple(1 << bit for bit in range(8))
BLOCK = 1 << 17  # entries of a stack that are packed at once, so that they stay in the cache of a CPU


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

    Examples:
        >>> message = pack({"sparse": torch.tensor([0.0, 0.5, 0.0, 0.0]), "dense": torch.tensor([1.0, 2.0])})
        >>> message["sparse"]
        Packed(bitmap=tensor([2], dtype=torch.uint8), values=tensor([0.5000]), shape=(4,))
        >>> nbytes(message)  # 1 and 4 for the first, 8 for the second
        13
    """
    return {name: _smaller(tensor) for name, tensor in tree.items()}


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
    blocks = {name: [_delivered(block) for block in _blocks(stack)] for name, stack in stacks.items()}
    arrived = {name: torch.cat([rows for rows, _ in parts]) for name, parts in blocks.items()}
    return arrived, sum(sent for parts in blocks.values() for _, sent in parts)


def stored(tree: Mapping[str, Tensor]) -> dict[str, Any]:
    """Pack tensors for a checkpoint: into plain tuples, as it must not hold classes of ours."""
    return {name: tuple(form) if isinstance(form, Packed) else form for name, form in pack(tree).items()}


def restored(entries: Mapping[str, Any]) -> Tree:
    """The tensors of a checkpoint, bit for bit, whether or not they were packed."""
    return unpack({name: Packed(*form) if isinstance(form, tuple) else form for name, form in entries.items()})


def _smaller(tensor: Tensor) -> Tensor | Packed:
    words = _words(tensor[None])
    present = words != 0
    if _packed_bytes(words, present) >= tensor.nbytes:
        return tensor
    bitmaps, values = _to_bits(words, present)
    return Packed(bitmaps[0], values.view(tensor.dtype), tuple(tensor.shape))


def _unpacked(packed: Packed) -> Tensor:
    words = _from_bits(packed.bitmap[None], _words(packed.values[None])[0], prod(packed.shape))
    return words.view(packed.values.dtype).view(packed.shape)


def _blocks(stack: Tensor) -> Sequence[Tensor]:
    rows = max(1, BLOCK // max(1, stack[0].numel()))
    return [stack[first : first + rows] for first in range(0, len(stack), rows)]


def _delivered(stack: Tensor) -> tuple[Tensor, int]:
    """The rows as they arrive, and the bytes of all."""
    words = _words(stack)
    present = words != 0
    dense, sizes = words[0].nbytes, _packed_bytes(words, present)
    packed = sizes < dense
    if packed.any():
        words = torch.where(packed[:, None], _from_bits(*_to_bits(words, present), words.shape[1]), words)
    return words.view(stack.dtype).view(stack.shape), int(sizes.clamp(max=dense).sum())


def _words(stack: Tensor) -> Tensor:
    """The entries as integers, so that no NaN loses its bits, ``[rows, entries]``."""
    flat = stack.detach().reshape(len(stack), prod(stack.shape[1:]))
    return flat.view(WORDS[flat.element_size()])


def _packed_bytes(words: Tensor, present: Tensor) -> Tensor:
    """Bytes of each row if it is packed, ``[rows]``."""
    return -(-words.shape[1] // 8) + present.sum(1) * words.element_size()


def _to_bits(words: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Bitmaps ``[rows, entries / 8, rounded up]``, and the values of all rows, ``[values]``."""
    rows, entries = present.shape
    bits = pad(present.byte(), (0, -entries % 8)).view(rows, -(-entries // 8), 8)
    bitmaps = (bits * bits.new_tensor(BIT_VALUES)).sum(2, dtype=torch.uint8)
    places = words.new_empty(1 + int(present.sum()))
    return bitmaps, places.scatter_(0, _places(present).long(), words.flatten())[1:]


def _from_bits(bitmaps: Tensor, values: Tensor, entries: int) -> Tensor:
    """The words, ``[rows, entries]``."""
    bits = bitmaps[..., None] & bitmaps.new_tensor(BIT_VALUES)
    present = bits.flatten(1)[:, :entries] != 0
    return pad(values, (1, 0)).index_select(0, _places(present)).view(present.shape)


def _places(present: Tensor) -> Tensor:
    """Place of each entry among the values, from 1; 0 for a zero. Values move faster by places than by a mask."""
    ones = present.flatten().int()
    return ones.cumsum(0, dtype=torch.int32).mul_(ones)
