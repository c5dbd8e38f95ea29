"""Arrays of any origin as the tensors that networks and partitions work on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jsonargparse.typing import register_type
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.data.transforms import ImageTransform, Numbers, Tokens
from pfl_lightning.errors import PflError
from pfl_lightning.models import InputKind
from pfl_lightning.models.hugging_face import loading
from pfl_lightning.objects import FROM_PYTHON
from pfl_lightning.tasks import IGNORED, Classification, MultiLabel, Regression, Segmentation, Task, check_values

Array = NDArray[Any]
KEY = "data.tokenizer"
LABELS = (-1, 0, 1)
CHUNK = 64  # samples that are made float64 at once


class ObjectFromPython:
    """An option that a settings file cannot hold, such as an array, so that it says what it was instead."""


def _refuse(value: object) -> None:
    raise ValueError(f"{value} is no object from Python")


register_type(
    ObjectFromPython,
    serializer=lambda value: f"{FROM_PYTHON}{type(value).__name__}",
    deserializer=_refuse,
    type_check=lambda value, _: not isinstance(value, str | int | float),  # a word or a number is no array
)
FromPython: Any = ObjectFromPython


class RawData(NamedTuple):
    """Samples as files and other libraries have them: NumPy arrays, tensors or lists.

    Attributes:
        inputs: Pixels, uint8 ``[samples, pixels]``, ``[samples, height, width]``, ``[samples, channels, height,
            width]`` or ``[samples, height, width, channels]``: the shorter of the second and the last axis has the
            channels. Or numbers, float ``[samples, features]`` or of any other shape; with four axes they are images as
            well. Or tokens counted from 0, any other whole numbers, ``[samples, length]``.
        targets: Classes, as whole numbers from 0 or as text; or floats for a regression, ``[samples]``. Two columns or
            more, ``[samples, columns]``, are labels as whole numbers, 1, 0 or -1 for unknown, or floats for a
            regression of several numbers. Or masks of images, ``[samples, height, width]``, with the class of each
            pixel as a whole number from 0, the background, or 255 to ignore it.
        clients: The client that has each sample, as whole numbers or text, ``[samples]``; None if unknown.
        class_names: Names of the classes that whole numbers count, or of the labels; their numbers if empty.
    """

    inputs: Any
    targets: Any
    clients: Any = None
    class_names: Sequence[str] = ()


def encode_inputs(
    splits: Sequence[Any], standardize: bool
) -> tuple[list[Tensor], InputKind, ImageTransform | Numbers | Tokens]:
    """Inputs as tensors.

    Args:
        splits: The training inputs, and those for testing if there are any; see ``RawData``.
        standardize: See ``OwnData``.

    Returns:
        The tensors of each split, what they are, and what makes network inputs of them.

    Raises:
        ValueError: If they are neither pixels nor numbers nor tokens.
    """
    arrays = [_laid_out(_array(split, "inputs")) for split in splits]
    kinds = {f"{array.dtype} {list(array.shape[1:])}" for array in arrays}
    if len(kinds) > 1:
        raise ValueError(f"training and test inputs must have one type and shape, got {' and '.join(sorted(kinds))}")
    if arrays[0].dtype == np.int64:
        tokens = [torch.from_numpy(array) for array in arrays]
        for split in tokens:
            check_values(split, split >= 0, "tokens", "whole numbers from 0 (other numbers are given as floats)")
        return tokens, "tokens", Tokens()
    is_pixels = arrays[0].dtype == np.uint8
    if not is_pixels:
        for array in arrays:
            check_values(torch.from_numpy(array), torch.from_numpy(np.isfinite(array)), "inputs", "finite numbers")
    mean, deviation = moments(arrays[0]) if standardize else (np.zeros(1), np.full(1, 255.0 if is_pixels else 1.0))
    if is_pixels:
        transform = ImageTransform(torch.from_numpy(mean / 255).float(), torch.from_numpy(deviation / 255).float())
        return [torch.from_numpy(array) for array in arrays], "numbers", transform
    return [_standardized(array, mean, deviation) for array in arrays], "numbers", Numbers()


def encode_targets(splits: Sequence[Any], class_names: Sequence[str]) -> tuple[list[Tensor], Task, tuple[str, ...]]:
    """Targets as tensors, and what they are.

    Args:
        splits: The training targets, and those for testing if there are any; see ``RawData``.
        class_names: See ``RawData``.

    Returns:
        The targets of each split as the task takes them; the task; and the names of the classes or labels, none for
        a regression.

    Raises:
        ValueError: If they are neither classes nor labels nor masks nor real numbers, or could be several of these.
    """
    if any(np.ndim(split) > 2 for split in splits):
        return _encode_masks(splits, class_names)
    targets, sizes = _joined(splits, "targets", axes=2)
    columns = targets.shape[1] if targets.ndim == 2 else 1
    if columns > 1:
        _check_columns(targets)
    if targets.dtype.kind == "f":
        numbers = torch.tensor(targets, dtype=torch.get_default_dtype())
        return list(numbers.split(sizes)), Regression().sized(columns), ()
    if columns > 1:
        labels = torch.from_numpy(targets.astype(np.int8))
        return list(labels.split(sizes)), MultiLabel().sized(columns), tuple(class_names or map(str, range(columns)))
    names = list(class_names)
    if targets.dtype.kind == "U":
        values, targets = np.unique(targets, return_inverse=True)
        names = values.tolist()
    numbers = torch.from_numpy(targets.astype(np.int64))
    requirement = "classes counted from 0, fewer than there are samples, or floats for a regression"
    check_values(numbers, (numbers >= 0) & (numbers < len(numbers)), "labels", requirement)
    if len(numbers.unique()) < 2:
        raise ValueError(f"targets must be two classes or more, or floats for a regression, got only {numbers[0]}")
    names = names or [*map(str, range(1 + int(numbers.max())))]
    return list(numbers.split(sizes)), Classification().sized(len(names)), tuple(names)


def _encode_masks(splits: Sequence[Any], class_names: Sequence[str]) -> tuple[list[Tensor], Task, tuple[str, ...]]:
    """Masks of images, uint8 ``[samples, height, width]``; see ``encode_targets``."""
    arrays = [_array(split, "targets") for split in splits]
    for array in arrays:
        if array.ndim != 3 or array.dtype.kind == "f":
            wanted = "whole numbers [samples, height, width] to be masks"
            raise ValueError(f"targets must be {wanted}, got {array.dtype} of the shape {list(array.shape)}")
        requirement = f"classes counted from 0, or {IGNORED} to ignore a pixel"
        in_range = (array >= 0) & (array <= IGNORED)
        check_values(torch.from_numpy(array), torch.from_numpy(in_range), "masks", requirement)
    largest = max(int(array.max(initial=0, where=array != IGNORED)) for array in arrays)
    if not largest:
        raise ValueError(f"masks must have two classes or more, got only 0 and {IGNORED}, which is ignored")
    names = tuple(class_names or map(str, range(largest + 1)))
    masks = [torch.from_numpy(array.astype(np.uint8)) for array in arrays]
    return masks, Segmentation().sized(len(names)), names


def _check_columns(targets: Array) -> None:
    """Refuse targets of several columns that are neither labels nor real numbers, or could be something else."""
    are_labels = np.isin(targets, LABELS)
    if are_labels.all() and (targets >= 0).all() and (targets.sum(1) == 1).all():
        shape = list(targets.shape)
        raise ValueError(f"targets must be classes [samples] where each sample has one label, got {shape}")
    if targets.dtype.kind != "f":
        requirement = "labels: 0, 1, or -1 for unknown; or floats for a regression"
        check_values(torch.from_numpy(targets), torch.from_numpy(are_labels), "targets", requirement)
    elif are_labels.all():
        raise ValueError(f"targets of 0, 1 and -1 must be whole numbers to be labels, got {targets.dtype}")


def encode_clients(splits: Sequence[Any]) -> tuple[list[Tensor | None], tuple[str, ...]]:
    """The client that has each sample, as a number.

    Args:
        splits: Those of the training samples, and those for testing if there are any; see ``RawData``.

    Returns:
        int64 ``[samples]`` of each split, and the clients' names in sorted order; None and nothing if unknown.

    Raises:
        ValueError: If they are neither whole numbers nor text, or known for a part of the samples only.
    """
    if all(split is None for split in splits):
        return [None] * len(splits), ()
    if any(split is None for split in splits):
        raise ValueError("clients are required of both training and test samples, or of neither")
    clients, sizes = _joined(splits, "clients")
    if clients.dtype.kind == "f":
        raise ValueError("clients must be whole numbers or text, got floats")
    names, numbers = np.unique(clients, return_inverse=True)
    return list(torch.from_numpy(numbers).split(sizes)), tuple(map(str, names))


def moments(inputs: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each channel of images, of all numbers in rows of pixels, else of each feature.

    Args:
        inputs: Images ``[samples, channels, height, width]``, pixels ``[samples, pixels]``, or features in the last
            axis.

    Returns:
        Two float64 arrays that can be subtracted from an input and divide it. A feature that is constant has the
        deviation 1; one that is 0 or 1 everywhere, such as a column of a one-hot code, is left as it is: 0 and 1.
    """
    is_image = inputs.ndim == 4
    is_row = inputs.dtype == np.uint8 and not is_image
    feature_axis = 1 if is_image else None if is_row else inputs.ndim - 1
    axes = tuple(axis for axis in range(inputs.ndim) if axis != feature_axis)
    shape = tuple(inputs.shape[axis] if axis == feature_axis else 1 for axis in range(1, inputs.ndim))
    parts = torch.from_numpy(inputs).split(CHUNK)
    count = inputs.size // max(1, int(np.prod(shape)))
    total = torch.stack([part.double().sum(axes) for part in parts]).sum(0).view(shape)
    squares = torch.stack([(part.double() - total / count).square_().sum(axes) for part in parts]).sum(0).view(shape)
    mean = (total / count).numpy()
    deviation = (squares / count).sqrt().numpy()
    deviation[(inputs.min(axes) == inputs.max(axes)).reshape(shape)] = 1
    if not (is_image or is_row):
        is_indicator = ((inputs == 0) | (inputs == 1)).all(axes).reshape(shape)
        mean[is_indicator] = 0
        deviation[is_indicator] = 1
    return mean, deviation


def _standardized(array: Array, mean: Array, deviation: Array) -> Tensor:
    """Shift and scale in float64, and keep the result in torch's default float type."""
    result = torch.empty(array.shape)
    for start in range(0, len(array), CHUNK):
        part = slice(start, start + CHUNK)
        result[part] = torch.from_numpy((array[part] - mean) / deviation)
    return result


def _joined(splits: Sequence[Any], name: str, axes: int = 1) -> tuple[Array, list[int]]:
    """Numbers or text of all splits, one after the other, and how many each split has.

    Args:
        splits: Those of each split.
        name: What they are, for errors.
        axes: 1 for ``[samples]``, 2 if they can also be several columns of numbers, ``[samples, columns]``.
    """
    arrays = [_array(split, name, kinds="biufU") for split in splits]
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


def _array(values: Any, name: str, kinds: str = "biuf") -> Array:
    """An array of some kinds of values, of the type of the machine."""
    array = np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    if array.dtype.kind == "S" or (array.dtype == object and all(isinstance(value, str) for value in array.flat)):
        array = array.astype(str)
    if array.dtype.kind not in kinds or not array.size:
        requirement = "numbers or text" if "U" in kinds else "numbers, all of one shape"
        raise ValueError(f"{name} must be {requirement}, got {array.dtype} of the shape {list(array.shape)}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _laid_out(array: Array) -> Array:
    """A copy of inputs as uint8, floats or int64, with channels in front of height and width."""
    if array.ndim < 2:
        raise ValueError(f"inputs must have the shape [samples, features] or more axes, got {list(array.shape)}")
    is_pixels = array.dtype == np.uint8
    if array.dtype.kind in "iu" and not is_pixels:
        if array.ndim > 2:
            raise ValueError(
                "inputs must be uint8 pixels, floats, or tokens [samples, length], got "
                f"{array.dtype} of the shape {list(array.shape)}"
            )
        return np.array(array, np.int64)
    if array.ndim == 3 and is_pixels:
        array = array[:, None]
    if array.ndim == 4 and array.shape[-1] < array.shape[1]:
        array = np.moveaxis(array, -1, 1)
    return np.array(array, np.float32 if array.dtype.kind == "b" else array.dtype, order="C")


def tokenize(splits: Sequence[Any], name: str, length: int) -> tuple[list[NDArray[np.int64]], int]:
    """Texts as the tokens of a network's own tokenizer.

    Args:
        splits: The training texts, and those for testing if there are any, ``[samples]`` each.
        name: Folder of the tokenizer, or its name on huggingface.co.
        length: Number of tokens of each text: longer ones are cut, shorter ones padded.

    Returns:
        The tokens of each split, ``[samples, length]``, and the size of the vocabulary.

    Raises:
        PflError: If the tokenizer cannot be loaded, or cannot pad.
        ValueError: If an input is no text.
    """
    with loading(name, KEY):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise PflError(f"{KEY} must have a padding token, got '{name}'")
    texts = [[*map(_text, split)] for split in splits]
    options = {"padding": "max_length", "truncation": True, "max_length": length}
    return [np.array(tokenizer(split, **options)["input_ids"], np.int64) for split in texts], len(tokenizer)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"inputs must be texts with data.tokenizer, got {value} ({type(value).__name__})")
    return str(value)
