"""Pickles of arrays and plain values, read without running any code that they name."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary, such as a batch of CIFAR-10, also one that Python 2 wrote.

    Numpy's own functions are not called either: they trust what a pickle says about the layout of memory.

    Args:
        path: The file.

    Returns:
        Its entries: numbers, strings, containers of them, and arrays of numbers.

    Raises:
        pickle.UnpicklingError: If it names anything but arrays of numbers.
        ValueError: If an array has not as many bytes as its shape says.
    """
    with path.open("rb") as file:
        content = _Unpickler(file, encoding="latin1").load()
    return {key: value.values if isinstance(value, _Array) else value for key, value in content.items()}


class _Type:
    """Stands in for a type of numbers."""

    def __init__(self, name: str, *_: bool) -> None:
        self.dtype = np.dtype(name)
        if self.dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"an array of {self.dtype}; allowed: numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands in for an array, which pickles create empty and then fill."""

    values: NDArray[Any] = np.empty(0)

    def __init__(self, *_: object) -> None:
        """Ignore numpy's class, its shape and its type: they come again when the array is filled."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns_first, content = state
        self.values = _from_buffer(content, kind, shape, "F" if columns_first else "C")


def _from_buffer(content: bytes | str, kind: _Type, shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    """The array; Python 2 wrote bytes as strings."""
    stored = content.encode("latin1") if isinstance(content, str) else content
    return np.frombuffer(stored, kind.dtype).reshape(shape, order=order)


KNOWN = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.multiarray.scalar": lambda kind, content: _from_buffer(content, kind, (), "C").item(),
    "numpy.core.numeric._frombuffer": _from_buffer,
    "_codecs.encode": lambda text, _: text.encode("latin1"),  # bytes in old protocols
}


class _Unpickler(pickle.Unpickler):
    """Knows the names by which pickles call for arrays, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in.

        Raises:
            pickle.UnpicklingError: If there is none.
        """
        called = f"{module}.{name}".replace("numpy._core.", "numpy.core.")  # its name since numpy 2
        if called not in KNOWN:
            raise pickle.UnpicklingError(f"it calls {called}; allowed: arrays of numbers and plain values")
        return KNOWN[called]
