"""Samples as files and other libraries have them, and the arrays that are made of them."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jsonargparse.typing import register_type
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.objects import FROM_PYTHON

Array = NDArray[Any]
Layout = Literal["NF", "NL", "NHW", "NCHW", "NHWC", "NCL", "NLC"]
TRAIN = "train"
SHOWN_NAMES = 6
VALIDATION = ("validation", "valid", "val", "dev")
TEST_SPLITS = ("test", "testing", *VALIDATION)  # the first of them that there is


class Splits(NamedTuple):
    """Which splits are for what, beside that for training.

    Attributes:
        test: That for testing; None if there is none.
        validation: That for validation; None if there is none.
        understood: What becomes of each split, for people.
    """

    test: str | None
    validation: str | None
    understood: str


def used_splits(names: Iterable[str], unusable: Mapping[str, str], chosen: str | None = None) -> Splits:
    """Which of the splits that there are is for what.

    Args:
        names: The splits that there are.
        unusable: Why some of them cannot be used.
        chosen: The one for testing, if the user has said so.
    """
    others = [name for name in names if name != TRAIN]
    usable = {*others} - {*unusable}
    test = chosen or next((name for name in TEST_SPLITS if name in usable), None)
    validation = next((name for name in VALIDATION if name in usable - {test}), None)
    parts = ["train"]
    parts += [f"{name} for {purpose}" for name, purpose in ((validation, "validation"), (test, "testing")) if name]
    parts += [f"{name} is not used{unusable.get(name, '')}" for name in others if name not in (test, validation)]
    return Splits(test, validation, "; ".join(parts))


class ObjectFromPython:
    """An option that a settings file cannot hold, such as an array, so that it says what it was instead."""


def _refuse(value: object) -> None:
    raise ValueError(f"{value} is no object from Python")


register_type(
    ObjectFromPython,
    serializer=lambda value: f"{FROM_PYTHON}{type(value).__name__}",
    deserializer=_refuse,
    # a word, a number or null is no array
    type_check=lambda value, _: value is not None and not isinstance(value, str | int | float),
)
FromPython: Any = ObjectFromPython


class RawData(NamedTuple):
    """Samples as files and other libraries have them: NumPy arrays, tensors or lists.

    Attributes:
        inputs: Pixels, numbers or tokens, ``[samples, ...]``; see ``encode_inputs``.
        targets: Classes, labels, numbers or masks, ``[samples, ...]``; see ``encode_targets``.
        clients: The client that has each sample, as whole numbers or text, ``[samples]``; None if unknown.
        class_names: Names of the classes that whole numbers count from 0, or of the labels. Default: the numbers.
        layout: What the axes of the inputs are, see ``OwnData``; None if the arrays alone can tell.
        notes: What else was understood, such as columns or files that are not used, by a word for it.
    """

    inputs: Any
    targets: Any
    clients: Any = None
    class_names: Sequence[str] = ()
    layout: Layout | None = None
    notes: Mapping[str, str] = {}


def plain_array(values: Any, name: str, kinds: str = "biuf") -> Array:
    """An array of some kinds of values, of the type of the machine.

    Args:
        values: An array, a tensor or nested lists.
        name: What they are, for errors.
        kinds: NumPy's letters for the kinds of values that are possible; ``U`` for text.

    Raises:
        ValueError: If they are of another kind, of several shapes, empty, or masked in part.
    """
    if isinstance(values, np.ma.MaskedArray) and (masked := int(np.ma.count_masked(values))):
        raise ValueError(f"{name} must not be masked, got {masked:,} masked values; fill them or drop the samples")
    array = np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    if array.dtype.kind == "S" or (array.dtype == object and all(isinstance(value, str) for value in array.flat)):
        array = array.astype(str)
    if array.dtype.kind not in kinds or not array.size:
        requirement = "numbers, all of one shape" + (", or text" if "U" in kinds else "")
        raise ValueError(f"{name} must be {requirement}, got {array.dtype} of the shape {list(array.shape)}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def joined(splits: Sequence[Any], name: str, axes: int = 1) -> tuple[Array, list[int]]:
    """Numbers or text of all splits, one after the other, and how many each split has; one column is no axis.

    Args:
        splits: Those of each split.
        name: What they are, for errors.
        axes: 1 for ``[samples]``, 2 if they can also be several columns of numbers, ``[samples, columns]``.

    Raises:
        ValueError: If they have another shape, or the splits have not one type.
    """
    arrays = [plain_array(split, name, kinds="biufU") for split in splits]
    arrays = [array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in arrays]
    for array in arrays:
        is_table = array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind != "U"
        if array.ndim != 1 and not (axes == 2 and is_table):
            columns = ", or [samples, columns] of two or more numbers" if axes == 2 else ""
            raise ValueError(f"{name} must have the shape [samples], one per sample{columns}, got {list(array.shape)}")
    if len(shapes := {array.shape[1:] for array in arrays}) > 1:
        raise ValueError(f"training and test {name} must have as many columns, got {sorted(map(list, shapes))}")
    if len({array.dtype.kind if array.dtype.kind in "fU" else "i" for array in arrays}) > 1:
        raise ValueError(f"training and test {name} must have one type: whole numbers, text or floats")
    signed = [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in arrays]
    return np.concatenate(signed), [*map(len, arrays)]


def shown(names: Sequence[str]) -> str:
    """Names for people: all of a few, else the first and the last."""
    if len(names) <= SHOWN_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN_NAMES - 2])}, ... {names[-1]}"


def warn_of_likeness(what: str, names: Sequence[str]) -> None:
    """Warn of two names that differ by blanks around them or by capital letters alone."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.strip().casefold(), name)
        if other != name:
            warnings.warn(
                f"data: '{other}' and '{name}' are two {what}; write them alike if they are one", stacklevel=2
            )
            return
