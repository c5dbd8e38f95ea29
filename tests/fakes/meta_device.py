"""The meta device in the place of a GPU: what would wait for one is noticed, and numbers are made up."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.waits import LISTENERS, place
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


@contextmanager
def listening(places: Counter[str]) -> Iterator[None]:
    """Notice the waits on the meta device, for which torch has no ``autocast``, not even to say that there is none."""
    with Listener(places), patch.object(torch, "autocast", lambda *_, **__: nullcontext()):
        yield


class Listener(TorchDispatchMode):
    """Notes what would wait for a GPU, on the meta device, and makes up the numbers that it does not have.

    Noted are a number that is read, a comparison as a whole, the places of what is not zero, also by a mask as an
    index, a copy to the processor, and a copy from it that is not ``non_blocking``. ``torch.tensor`` escapes it.

    Args:
        places: Counts the waits.
    """

    def __init__(self, places: Counter[str]) -> None:
        super().__init__()
        self.places = places

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry an operation out, and note whether it waits."""
        kind = func.overloadpacket
        kwargs = kwargs or {}
        if kind in MADE_UP and args[0].is_meta:
            self.places[place()] += 1
            return MADE_UP[kind](args[0])
        if kind in (aten._to_copy, aten.copy_):
            return self.copied(func, *args, **kwargs)
        if kind in (aten.index, aten.index_put, aten.index_put_):
            masks = [index is not None and index.is_meta and index.dtype == torch.bool for index in args[1]]
            self.places.update([place()] if any(masks) else [])
            indices = [all_places(i).unbind(1) if is_mask else (i,) for i, is_mask in zip(args[1], masks, strict=True)]
            args = (args[0], [*chain(*indices)], *args[2:])
        return func(*args, **kwargs)

    def copied(self, func: Any, first: Tensor, *rest: Any, **options: Any) -> Any:
        """A copy, or its target."""
        source = rest[0] if rest else first
        target = first.device if rest else options.get("device", first.device)
        non_blocking = rest[1] if len(rest) > 1 else options.get("non_blocking", False)
        if torch.device(target).type == source.device.type or (non_blocking and not source.is_meta):
            return func(first, *rest, **options)
        self.places[place()] += 1
        if not source.is_meta:
            return func(first, *rest, **options)
        return first.fill_(1) if rest else torch.ones(source.shape, dtype=options.get("dtype") or source.dtype)


def all_places(tensor: Tensor) -> Tensor:
    """The places of what is not zero, were it everything."""
    return torch.zeros(tensor.numel(), tensor.ndim, dtype=torch.int64, device="meta")


MADE_UP = {
    aten._local_scalar_dense: lambda tensor: torch.ones((), dtype=tensor.dtype).item(),
    aten.equal: lambda tensor: True,
    aten.allclose: lambda tensor: True,
    aten.nonzero: all_places,
}


LISTENERS["meta"] = listening
