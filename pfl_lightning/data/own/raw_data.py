"""Arrays of any origin as the tensors that networks and partitions work on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jsonargparse.typing import register_type
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.data.labelled import check_each
from pfl_lightning.data.transforms import ImageTransform, Numbers, Tokens
from pfl_lightning.errors import PflError
from pfl_lightning.models import InputKind
from pfl_lightning.models.hugging_face import loading
from pfl_lightning.settings.objects import FROM_PYTHON

Array = NDArray[Any]
KEY = "data.tokenizer"
PART = 64  # samples that are made float64 at once


class _FromPython:
    """An option that a settings file cannot hold, such as an array, so that it says what it was instead."""


def _refuse(value: object) -> None:
    raise ValueError(f"{value} is not possible; allowed: an array, from Python")


register_type(
    _FromPython,
    serializer=lambda value: f"{FROM_PYTHON}{type(value).__name__}",
    deserializer=_refuse,
    type_check=lambda value, _: not isinstance(value, str | int | float),  # a word or a number is no array
)
FromPython: Any = _FromPython


class RawData(NamedTuple):
    """Samples as files and other libraries have them: NumPy arrays, tensors or lists.

    Attributes:
        inputs: Pixels, uint8 ``[samples, pixels]``, ``[samples, height, width]``, ``[samples, channels, height,
            width]`` or ``[samples, height, width, channels]``: the shorter of the second and the last axis has the
            channels. Or numbers, float ``[samples, features]`` or of any other shape; with four axes they are images as
            well. Or tokens counted from 0, any other whole numbers, ``[samples, length]``.
        targets: Classes, as whole numbers from 0 or as text; or floats for a regression, ``[samples]``.
        clients: The client that has each sample, as whole numbers or text, ``[samples]``; None if unknown.
        class_names: Names of the classes that whole numbers count; the numbers themselves if empty.
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
    if len(found := {(array.shape[1:], array.dtype) for array in arrays}) > 1:
        shown = " and ".join(sorted(f"{dtype} {list(shape)}" for shape, dtype in found))
        raise ValueError(f"training and test inputs of {shown}; allowed: of one kind and shape")
    if arrays[0].dtype == np.int64:
        tokens = [torch.from_numpy(array) for array in arrays]
        for each in tokens:
            check_each(each, each >= 0, "token", "whole numbers from 0; numbers of another kind as floats")
        return tokens, "tokens", Tokens()
    is_pixels = arrays[0].dtype == np.uint8
    if not is_pixels:
        for array in arrays:
            check_each(torch.from_numpy(array), torch.from_numpy(np.isfinite(array)), "input", "finite numbers")
    mean, deviation = moments(arrays[0]) if standardize else (np.zeros(1), np.full(1, 255.0 if is_pixels else 1.0))
    if is_pixels:
        transform = ImageTransform(torch.from_numpy(mean / 255).float(), torch.from_numpy(deviation / 255).float())
        return [torch.from_numpy(array) for array in arrays], "numbers", transform
    return [_standardized(array, mean, deviation) for array in arrays], "numbers", Numbers()


def encode_targets(splits: Sequence[Any], class_names: Sequence[str]) -> tuple[list[Tensor], tuple[str, ...]]:
    """Targets as tensors.

    Args:
        splits: The training targets, and those for testing if there are any; see ``RawData``.
        class_names: See ``RawData``.

    Returns:
        Class numbers, int64, or floats for a regression, of each split; and the names of the classes, none for a
        regression.

    Raises:
        ValueError: If they are neither classes nor real numbers.
    """
    targets, sizes = _joined(splits, "targets")
    if targets.dtype.kind == "f":
        return list(torch.tensor(targets, dtype=torch.get_default_dtype()).split(sizes)), ()
    names = list(class_names)
    if targets.dtype.kind == "U":
        found, targets = np.unique(targets, return_inverse=True)
        names = found.tolist()
    numbers = torch.from_numpy(targets.astype(np.int64))
    allowed = "classes counted from 0, fewer than there are samples, or floats for a regression"
    check_each(numbers, (numbers >= 0) & (numbers < len(numbers)), "label", allowed)
    if len(numbers.unique()) < 2:
        raise ValueError(f"all targets are {numbers[0]}; allowed: two classes or more, or floats for a regression")
    return list(numbers.split(sizes)), tuple(names or map(str, range(1 + int(numbers.max()))))


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
        raise ValueError("clients of training or test samples alone; allowed: of both, or of neither")
    clients, sizes = _joined(splits, "clients")
    if clients.dtype.kind == "f":
        raise ValueError("clients that are floats; allowed: whole numbers or text")
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
    kept = (1,) if is_image else () if is_row else (inputs.ndim - 1,)
    axes = tuple(axis for axis in range(inputs.ndim) if axis not in kept)
    shape = tuple(inputs.shape[axis] if axis in kept else 1 for axis in range(inputs.ndim))[1:]
    parts = torch.from_numpy(inputs).split(PART)
    count = inputs.size // max(1, int(np.prod(shape)))
    total = torch.stack([part.double().sum(axes) for part in parts]).sum(0).view(shape)
    squares = torch.stack([(part.double() - total / count).square_().sum(axes) for part in parts]).sum(0).view(shape)
    mean, deviation = (total / count).numpy(), (squares / count).sqrt().numpy()
    deviation[(inputs.min(axes) == inputs.max(axes)).reshape(shape)] = 1
    if not (is_image or is_row):
        is_indicator = ((inputs == 0) | (inputs == 1)).all(axes).reshape(shape)
        mean[is_indicator], deviation[is_indicator] = 0, 1
    return mean, deviation


def _standardized(array: Array, mean: Array, deviation: Array) -> Tensor:
    """Shift and scale in float64, and keep the result in torch's default float type."""
    result = torch.empty(array.shape)
    for start in range(0, len(array), PART):
        part = slice(start, start + PART)
        result[part] = torch.from_numpy((array[part] - mean) / deviation)
    return result


def _joined(splits: Sequence[Any], name: str) -> tuple[Array, list[int]]:
    """Numbers or text of all splits, one after the other, ``[samples]``, and how many each split has."""
    arrays = [_array(split, name, kinds="biufU") for split in splits]
    for array in arrays:
        if array.ndim != 1:
            raise ValueError(f"{name} of the shape {list(array.shape)}; allowed: [samples], one for each sample")
    if len({array.dtype.kind if array.dtype.kind in "fU" else "i" for array in arrays}) > 1:
        raise ValueError(f"training and test {name} of two types; allowed: one of whole numbers, text and floats")
    whole = [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in arrays]  # of one signedness
    return np.concatenate(whole), [len(array) for array in arrays]


def _array(values: Any, name: str, kinds: str = "biuf") -> Array:
    """An array of some kinds of values, of the type of the machine."""
    array = np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    if array.dtype.kind == "S" or (array.dtype == object and all(isinstance(each, str) for each in array.flat)):
        array = array.astype(str)
    if array.dtype.kind not in kinds or not array.size:
        allowed = "numbers or text" if "U" in kinds else "numbers, all of one shape"
        raise ValueError(f"{name} of the type {array.dtype} and the shape {list(array.shape)}; allowed: {allowed}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _laid_out(array: Array) -> Array:
    """A copy of inputs as uint8, floats or int64, with channels in front of height and width."""
    if array.ndim < 2:
        raise ValueError(f"inputs of the shape {list(array.shape)}; allowed: [samples, features] and more axes")
    is_pixels = array.dtype == np.uint8
    if array.dtype.kind in "iu" and not is_pixels:
        if array.ndim > 2:
            allowed = "uint8 pixels, floats, or tokens [samples, length]"
            raise ValueError(f"inputs of the type {array.dtype} and the shape {list(array.shape)}; allowed: {allowed}")
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
        raise PflError(f"{KEY}: '{name}' has no padding token; allowed: a tokenizer that has one")
    texts = [[*map(_text, split)] for split in splits]
    cut = {"padding": "max_length", "truncation": True, "max_length": length}
    return [np.array(tokenizer(each, **cut)["input_ids"], np.int64) for each in texts], len(tokenizer)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the input {value} of the type {type(value).__name__} is no text for data.tokenizer")
    return str(value)
