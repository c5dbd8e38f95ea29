"""Counter-based randomness: every draw is a pure function of its key, so there is no generator state to save."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_LARGEST = (1 << 63) - 1
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # splitmix64's increment, as a signed 64-bit integer
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))

Key = tuple[int | str, ...]


def seed_of(*key: int | str) -> int:
    """Hash a key such as ``(seed, "pool", round)`` to a 63-bit seed."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def numpy_generator(*key: int | str) -> np.random.Generator:
    """A fresh numpy generator for the key."""
    return np.random.default_rng(seed_of(*key))


def random_words(key: Key, ids: Tensor, columns: int, first: int = 0) -> Tensor:
    """Draw one 64-bit word for each (key, id, column), on the device of ``ids``.

    A word depends on nothing else: not on other ids, the number of columns or the device.

    Args:
        key: Key of the draw.
        ids: Client ids or other stream numbers, ``[clients]``.
        columns: Draws per client.
        first: First column.

    Returns:
        Signed integers, uniform over all 2^64 values, ``[clients, columns]``.
    """
    return _words(_streams(key, ids), columns, first)


def random_bits(key: Key, ids: Tensor, columns: int) -> Tensor:
    """Draw one 63-bit integer for each (key, id, column): a random word without its sign.

    Args:
        key: Key of the draw.
        ids: Client ids, ``[clients]``.
        columns: Draws per client.

    Returns:
        Integers in [0, 2^63), ``[clients, columns]``.
    """
    return random_words(key, ids, columns) & _LARGEST


def uniforms(key: Key, ids: Tensor, columns: int) -> Tensor:
    """Draw one number in [0, 1) for each (key, id, column), a multiple of 2^-24, float64 ``[clients, columns]``."""
    return (random_bits(key, ids, columns) >> 39).double() / 2**24


def next_words(streams: Tensor, count: int) -> Tensor:
    """Draw the next words of some streams, ``[..., count]``, and move the streams on, in place.

    Args:
        streams: A random word for each, ``[...]``; it moves on to the same one whatever the count is.
        count: How many words.
    """
    words = _words(streams, count, first=1)
    streams.copy_(_words(streams, 1)[..., 0])
    return words


def permutations(key: Key, ids: Tensor, counts: Tensor, columns: int, first: int | None = None) -> Tensor:
    """Shuffle each client's own positions ``0 .. counts - 1``; the other positions follow.

    Args:
        key: Key of the draw.
        ids: Client ids, ``[clients]``.
        counts: Samples of each client, ``[clients]``, on the device of ``ids``.
        columns: Length of a row, at least the largest count.
        first: Number of leading entries of each permutation to return; None for all.

    Returns:
        One permutation of ``range(columns)`` per client, ``[clients, columns]``, or its first entries.
    """
    bits = random_bits(key, ids, columns)
    absent = torch.arange(columns, device=ids.device) >= counts[:, None]
    bits = bits.masked_fill_(absent, _LARGEST)
    if first is None or first >= columns:
        return bits.argsort(dim=1, stable=True)
    return bits.topk(first, dim=1, largest=False).indices


def samples(keys: Sequence[Key], ids: Tensor, counts: Tensor, size: int) -> Tensor:
    """Draw a few of each client's own positions ``0 .. counts - 1``, without replacement and in random order.

    The cost does not depend on the counts (Floyd's algorithm; Bentley and Floyd, A Sample of Brilliance, Communications
    of the ACM 1987). A client with at most ``size`` positions gets the permutation that ``permutations`` draws.

    Args:
        keys: A key for each draw.
        ids: Client ids, ``[clients]``.
        counts: Samples of each client, ``[clients]``, on the device of ``ids``.
        size: Positions to draw, a small number.

    Returns:
        Positions, ``[keys, clients, size]``; once a client has no more positions, those from its count on follow.
    """
    slots, counts = torch.arange(size, device=ids.device), counts.repeat(len(keys))[:, None]
    last = (counts - size).clamp(min=0) + slots
    drawn, order = ([_streams((*key, *extra), ids) for key in keys] for extra in (("drawn",), ()))
    chosen = (_words(torch.cat(drawn), size) & _LARGEST) % (last + 1)
    for slot in range(1, size):
        seen = (chosen[:, :slot] == chosen[:, slot, None]).any(1)
        chosen[:, slot] = torch.where(seen, last[:, slot], chosen[:, slot])
    chosen = torch.where(counts <= size, slots, chosen)
    bits = (_words(torch.cat(order), size) & _LARGEST).masked_fill_(slots >= counts, _LARGEST)
    return chosen.gather(1, bits.argsort(dim=1, stable=True)).view(len(keys), len(ids), size)


def _streams(key: Key, ids: Tensor) -> Tensor:
    """The start of each client's sequence of words, ``[clients]``."""
    return _mix(ids * _GOLDEN + seed_of(*key))


def _words(streams: Tensor, columns: int, first: int = 0) -> Tensor:
    """Words of some sequences, ``[..., columns]``, starting at the column ``first``."""
    column = torch.arange(first + 1, first + columns + 1, device=streams.device)
    return _mix(streams[..., None] + column * _GOLDEN)


def _mix(state: Tensor) -> Tensor:
    """The finalizer of splitmix64 (Steele, Lea & Flood 2014), on wrapping signed integers."""
    for shift, factor in _MIX:
        state = (state ^ _shift_right(state, shift)) * factor
    return state ^ _shift_right(state, 31)


def _shift_right(state: Tensor, bits: int) -> Tensor:
    return (state >> bits) & ((1 << (64 - bits)) - 1)  # torch's shift copies the sign bit; the mask removes it
