"""Where the processor waits for the device during an action: every such place keeps the device from being busy."""

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import pfl_lightning

ROOTS = (Path(pfl_lightning.__file__).parent, Path(__file__).parents[1])
WARNING = "called a synchronizing CUDA operation"
Action = Callable[[], object]


def waits(action: Action, device: torch.device) -> Counter[str]:
    """How often an action waits for a GPU at each place, ``file:line``.

    Torch tells; it does not notice all (``torch.cuda.set_sync_debug_mode``).
    """
    places: Counter[str] = Counter()
    with LISTENERS[device.type](places):
        action()
    return places


def place() -> str:
    """The line of ours that is being carried out."""
    for frame, line in traceback.walk_stack(None):
        file = Path(frame.f_code.co_filename)
        root = next((root for root in ROOTS if file.is_relative_to(root)), None)
        if root is not None and file != Path(__file__):
            return f"{file.relative_to(root.parent)}:{line}"
    return "elsewhere"


@contextmanager
def warned_by_torch(places: Counter[str]) -> Iterator[None]:
    """Let torch warn of every wait, and count them."""

    def note(message: Warning | str, *_: Any) -> None:
        if WARNING in str(message):
            places[place()] += 1

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(), patch.object(warnings, "showwarning", note):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


# by the type of the device; the tests add one that listens on the meta device
LISTENERS: dict[str, Callable[[Counter[str]], AbstractContextManager[None]]] = {"cuda": warned_by_torch}
