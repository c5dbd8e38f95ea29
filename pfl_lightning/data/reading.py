"""Reading files of data: one line for what is wrong, no code of theirs is run, and progress on a terminal."""

import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.status import Status

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.files import is_intact

CONSOLE = Console(stderr=True)  # one for all bars: rich stacks those that are shown at the same time


def bar_options() -> dict[str, Any]:
    """Options of rich's progress bars: show the bar on stderr, if that is a terminal."""
    # without this, rich would print an empty line if there is no terminal
    return {"console": CONSOLE, "disable": not CONSOLE.is_terminal}


def loading_status(name: str) -> Status:
    """A context that shows on a terminal that a data set is being loaded.

    Args:
        name: Name of the data set.
    """
    return CONSOLE.status(f"Loading {name}")


@contextmanager
def reading(path: object, remedy: str, key: str = "data.root") -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into one line that names the file.

    Args:
        path: The file.
        remedy: What the user can do; ends the line.
        key: The option that led to the file.

    Raises:
        PflError: For every other exception.
    """
    try:
        if isinstance(path, Path) and path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(EINVAL, "no regular file")  # a pipe or a device, which may never end
        yield
    except PflError:
        raise
    except Exception as error:  # parsers of damaged files raise almost everything
        raise PflError(f"{key}: cannot read '{path}' ({_reason(error)}); {remedy}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{error} is missing" if isinstance(error, KeyError) else one_line(error)


def find_folder(root: str, folder: str, file: str, remedy: str) -> Path:
    """The folder that a data set was unpacked to: below the root, or the root itself.

    Args:
        root: The folder given by ``data.root``.
        folder: Its name.
        file: A file in it.
        remedy: Where to get the data set; ends the error.

    Raises:
        PflError: If the file is in neither.
    """
    for place in (Path(root) / folder, Path(root)):
        if (place / file).is_file():
            return place
    raise PflError(f"data.root: no '{file}' in '{root}' (looked there and in {folder}/); {remedy}")


def read_tensors(path: Path) -> Any:
    """Read what ``torch.save`` has written, onto the CPU: tensors and plain values. No code of the file is run.

    Args:
        path: The file.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it holds anything else, or is damaged; torch's own words advise to run its code.
    """
    with path.open("rb"):
        pass
    if zipfile.is_zipfile(path) and not is_intact(path):
        raise ValueError("it is damaged")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many kinds for foreign files
        raise ValueError("not what torch.save writes, not complete, or not plain values and tensors") from error


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of arrays and plain values, such as a batch of CIFAR-10, also one that Python 2 wrote.

    No code that the pickle names is run. Numpy's own functions are not called either: they trust what a pickle says
    about the layout of memory.

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
            raise pickle.UnpicklingError(f"arrays must hold numbers, got {self.dtype}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands in for an array, which pickles create empty and then fill."""

    values: NDArray[Any] = np.empty(0)

    def __init__(self, *_: object) -> None:
        """Ignore numpy's class, its shape and its type: they come again when the array is filled."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, number_type, columns_first, content = state
        self.values = _from_buffer(content, number_type, shape, "F" if columns_first else "C")


def _from_buffer(content: bytes | str, number_type: _Type, shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    """The array; Python 2 wrote bytes as strings."""
    stored = content.encode("latin1") if isinstance(content, str) else content
    return np.frombuffer(stored, number_type.dtype).reshape(shape, order=order)


STAND_INS = {  # for the names by which pickles call for arrays
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.multiarray.scalar": lambda number_type, content: _from_buffer(content, number_type, (), "C").item(),
    "numpy.core.numeric._frombuffer": _from_buffer,
    "_codecs.encode": lambda text, _: text.encode("latin1"),  # bytes in old protocols
}


class _Unpickler(pickle.Unpickler):
    """Refuses all names but those that have a stand-in."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in.

        Raises:
            pickle.UnpicklingError: If there is none.
        """
        path = f"{module}.{name}".replace("numpy._core.", "numpy.core.")  # its name since numpy 2
        if path not in STAND_INS:
            raise pickle.UnpicklingError(f"pickles must hold arrays of numbers and plain values, got a call of {path}")
        return STAND_INS[path]
