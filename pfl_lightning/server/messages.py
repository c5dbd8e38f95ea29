"""Sizes of messages, and sparse models in checkpoints: zeros take one bit each where that is shorter."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import ROUNDING
from pfl_lightning.tree import Tree, select

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integer types by width in bytes
SCALE = 32  # bits of the number that those of a quantized tensor are multiples of


@dataclass(frozen=True)
class Message:
    """How an upload is written, as its steps decide.

    Attributes:
        packed: Whether zeros take one bit each where that is shorter; see ``packed_bits``.
        value_bits: Bits of each parameter of the model; None for those of its floats.
        kept: Share of the parameters that are sent at all, with a bitmap that says which; 1 for all, without it.
    """

    packed: bool = False
    value_bits: int | None = None
    kept: float = 1.0

    def bytes(self, tree: Tree, parameters: Set[str]) -> int:
        """Bytes of the uploads of some clients.

        Args:
            tree: What they upload, ``[clients, ...]`` each.
            parameters: Names of the parameters; other tensors, such as losses, are sent as floats.
        """
        if self.packed:
            return int(packed_bits(tree).sum()) // 8
        if self.value_bits is None and self.kept == 1:
            return nbytes(tree)
        coded = select(tree, parameters)
        others = {name: stack for name, stack in tree.items() if name not in coded}
        sizes = (len(stack) * -(-self.bits_of(stack[0]) // 8) for stack in coded.values())
        return nbytes(others) + sum(sizes)

    def bits_of(self, tensor: Tensor) -> int:
        """Bits of one tensor of parameters."""
        entries = tensor.numel()
        sent = kept_entries(self.kept, entries)
        bitmap = entries if sent < entries else 0
        values = 8 * tensor.element_size() * sent if self.value_bits is None else self.value_bits * sent + SCALE
        return bitmap + values


def kept_entries(share: float, entries: int) -> int:
    """How many of the entries of a tensor are kept, at least one, if a share of them is, rounded up."""
    return min(entries, max(1, ceil(share * entries - ROUNDING)))


def nbytes(tree: Mapping[str, Tensor]) -> int:
    """Bytes of some tensors, not counting names and shapes, which sender and receiver know."""
    return sum(tensor.nbytes for tensor in tree.values())


def packed_bits(models: Mapping[str, Tensor]) -> Tensor:
    """Bits of each model as a message in which zeros take one bit each.

    Formula: ``sum min(8 b n, 8 ceil(n / 8) + 8 b k)`` over the tensors, with n entries of b bytes, k of them not zero:
    a tensor is sent whole, or as a bitmap and these k entries, whichever is shorter. A zero is an entry whose bits are
    all zero, which excludes -0.0, so nothing is lost.

    Args:
        models: ``[models, ...]`` each.

    Returns:
        Whole numbers, ``[models]``.

    Examples:
        >>> packed_bits({"sparse": torch.tensor([[0.0, 0.5, 0.0, 0.0]]), "dense": torch.tensor([[1.0, 2.0]])}) // 8
        tensor([13])
    """
    sizes = []
    for stack in models.values():
        words = _words(stack)
        packed = -(-words.shape[1] // 8) + words.count_nonzero(1) * words.element_size()
        sizes.append(packed.clamp(max=words[0].nbytes))
    return 8 * torch.as_tensor(sum(sizes))  # 0 of no tensors


def pack_tensors(tree: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors for a checkpoint: each of them whole, or as a tuple of bitmap, nonzero entries and shape."""
    return {name: _packed(tensor.detach()) for name, tensor in tree.items()}


def unpack_tensors(entries: Mapping[str, Any]) -> Tree:
    """The tensors of a checkpoint, bit for bit, whether or not they were packed."""
    return {name: _unpacked(*form) if isinstance(form, tuple) else form for name, form in entries.items()}


def _packed(tensor: Tensor) -> Tensor | tuple[Tensor, Tensor, tuple[int, ...]]:
    if packed_bits({"": tensor[None]}) >= 8 * tensor.nbytes:
        return tensor
    words = _words(tensor[None])[0]
    present = words != 0
    bitmap = np.packbits(present.numpy(force=True), bitorder="little")
    return torch.from_numpy(bitmap), words[present].view(tensor.dtype), tuple(tensor.shape)


def _unpacked(bitmap: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    present = np.unpackbits(bitmap.numpy(force=True), count=prod(shape), bitorder="little")
    words = _words(values[None])[0]  # as integers, since copying floats could change the bits of a NaN
    entries = words.new_zeros(prod(shape))
    entries[torch.from_numpy(present).to(words.device, torch.bool)] = words
    return entries.view(values.dtype).view(shape)


def _words(stack: Tensor) -> Tensor:
    """The entries of each row as integers with the same bits, ``[rows, entries]``."""
    flat = stack.detach().reshape(len(stack), prod(stack.shape[1:]))
    return flat.view(WORDS[flat.element_size()])
