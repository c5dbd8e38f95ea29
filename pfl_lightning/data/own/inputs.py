"""Inputs of any origin as the tensors that networks take: their layout and their scale."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.data.own.raw_data import Array, Layout, plain_array
from pfl_lightning.data.transforms import ImageTransform, Numbers, Tokens
from pfl_lightning.models import InputKind
from pfl_lightning.tasks import check_values

ROWS, OTHER = "rows", "other"  # layouts that have no letters: pictures in a row, and more than four axes
PICTURES = ("NHW", "NCHW", "NHWC", ROWS)
CHANNEL_AXIS = {"NF": 1, "NHW": 1, "NCHW": 1, "NHWC": 1, "NCL": 1, "NLC": 2}  # once channels are in front of pixels
WORDS = {
    "NF": "features",
    "NL": "tokens",
    "NHW": "grey images of {1} x {2} pixels",
    "NCHW": "images of {1} x {2} pixels, {0} channels first",
    "NHWC": "images of {1} x {2} pixels, {0} channels last",
    "NCL": "series of {1} steps, {0} channels first",
    "NLC": "series of {0} steps, {1} channels last",
    ROWS: "rows of {0} pixels",
    OTHER: "numbers",
}
MOST_CHANNELS = 4  # of pictures
SMALLEST_ROW = 64  # pixels of a picture
MOST_SPREAD = 100  # how many times as far numbers may range as others
CHUNK = 64  # samples that are made float64 at once


class Inputs(NamedTuple):
    """Inputs as tensors.

    Attributes:
        splits: The tensors of each split, ``[samples, ...]``.
        kind: What they are.
        transform: Makes network inputs of them.
        understood: What they were taken for, for people.
        layout: What their axes are.
        shape: That of a sample.
        scale: Mean and standard deviation that numbers were standardised by; None for pixels and tokens.
    """

    splits: list[Tensor]
    kind: InputKind
    transform: ImageTransform | Numbers | Tokens
    understood: str
    layout: str
    shape: tuple[int, ...]
    scale: tuple[Array, Array] | None = None

    def of_new(self, raw: Any) -> Tensor:
        """What a network takes for new samples in the form of these, ``[samples, ...]``.

        Raises:
            ValueError: If they have another shape, or pixels are no pixels.
        """
        array = _laid_out(plain_array(raw, "inputs", kinds="biuf"), self.layout)
        are_pixels = self.scale is None and self.kind == "numbers"
        if array.shape[1:] != self.shape or (are_pixels and array.dtype != np.uint8):
            expected = f"{'uint8 ' * are_pixels}{[*self.shape]} each as those for training"
            raise ValueError(f"inputs must be {expected}, got {array.dtype} {[*array.shape[1:]]}")
        return self.transform(torch.from_numpy(array) if self.scale is None else _standardized(array, *self.scale))


def encode_inputs(splits: Sequence[Any], standardize: bool, layout: Layout | None = None) -> Inputs:
    """Inputs as tensors.

    Args:
        splits: The training inputs, and those for testing if there are any, ``[samples, ...]`` each.
        standardize: See ``OwnData``.
        layout: See ``OwnData``.

    Raises:
        ValueError: If they are neither pixels nor numbers nor tokens, or could have several layouts.
    """
    raw = [plain_array(split, "inputs", kinds="biufU") for split in splits]
    if raw[0].dtype.kind == "U":
        raise ValueError(f"inputs are texts, such as '{raw[0].flat[0]}'; data.tokenizer makes tokens of them")
    kinds = {f"{array.dtype} {list(array.shape[1:])}" for array in raw}
    if len(kinds) > 1:
        raise ValueError(f"training and test inputs must have one type and shape, got {' and '.join(sorted(kinds))}")
    if layout is not None and len(layout) != raw[0].ndim:
        raise ValueError(f"data.layout must have {raw[0].ndim} letters for inputs {min(kinds)}, got {layout}")
    read_as = layout or _layout_of(raw[0], min(kinds))
    arrays = [_laid_out(array, read_as) for array in raw]
    if len(arrays[0]) > 1 and all((sample == arrays[0][0]).all() for sample in arrays[0]):
        warnings.warn(f"data: the inputs of all {len(arrays[0]):,} training samples are alike", stacklevel=2)
    words = f"{WORDS[read_as].format(*arrays[0].shape[1:])} ({min(kinds)})"
    return _encode_tokens(arrays, words) if read_as == "NL" else _encode_numbers(arrays, read_as, standardize, words)


def _encode_tokens(arrays: Sequence[Array], words: str) -> Inputs:
    tokens = [torch.from_numpy(array) for array in arrays]
    for split in tokens:
        check_values(split, split >= 0, "tokens", "whole numbers from 0 (data.layout: NF makes them features)")
    return Inputs(tokens, "tokens", Tokens(), words, "NL", tokens[0].shape[1:])


def _encode_numbers(arrays: Sequence[Array], layout: str, standardize: bool, words: str) -> Inputs:
    """Pixels, which their transform standardizes, or numbers, which are standardised here."""
    is_pixels = arrays[0].dtype == np.uint8
    if not is_pixels:
        for array in arrays:
            check_values(torch.from_numpy(array), torch.from_numpy(np.isfinite(array)), "inputs", "finite numbers")
    axis = CHANNEL_AXIS.get(layout)
    if standardize:
        mean, deviation = moments(arrays[0], axis, keeps_indicators=layout not in PICTURES)
        scope = "all together" if axis is None else "each feature" if layout == "NF" else "each channel"
        words += f", standardised {scope} (deviations {deviation.min():.3g} to {deviation.max():.3g})"
    else:
        mean, deviation = np.zeros(1), np.full(1, 255.0 if is_pixels else 1.0)
        words += ", scaled to [0, 1]" if is_pixels else ", not standardised"
    shape = arrays[0].shape[1:]
    if is_pixels:
        transform = ImageTransform(torch.from_numpy(mean / 255).float(), torch.from_numpy(deviation / 255).float())
        return Inputs([torch.from_numpy(array) for array in arrays], "numbers", transform, words, layout, shape)
    tensors = [_standardized(array, mean, deviation) for array in arrays]
    for other in {"NF": [1], "NCL": [1, 2], "NLC": [1, 2]}.get(layout, []):
        if not (standardize and other == axis):
            _warn_of_scales(tensors[0], other)
    return Inputs(tensors, "numbers", Numbers(), words, layout, shape, (mean, deviation))


def _layout_of(array: Array, kind: str) -> str:
    """The layout of inputs that have only one possible.

    Args:
        array: ``[samples, ...]``.
        kind: Its type and the shape of a sample.
    """
    shape = array.shape[1:]
    is_pixels = array.dtype == np.uint8
    is_whole = array.dtype.kind in "iu" and not is_pixels
    if not shape:
        raise ValueError(f"inputs must have the shape [samples, features] or more axes, got {list(array.shape)}")
    if len(shape) == 1:
        if is_pixels and shape[0] >= SMALLEST_ROW and {(shape[0] / channels) ** 0.5 % 1 for channels in (1, 3)} & {0}:
            return ROWS
        return "NL" if is_whole and array.min() >= 0 else "NF"
    if len(shape) == 2 and not is_pixels:
        raise ValueError(f"inputs {kind} can be grey images or series; data.layout must be NHW, NCL or NLC")
    if len(shape) == 2:
        return "NHW"
    if is_whole:
        raise ValueError(f"inputs must be uint8 pixels, floats, or have a data.layout, got {kind}")
    if len(shape) > 3:
        return OTHER
    first, last = _is_like_a_picture(shape[0], shape[1:]), _is_like_a_picture(shape[2], shape[:2])
    if first == last:
        raise ValueError(f"inputs {kind} can have their channels first or last; data.layout must be NCHW or NHWC")
    return "NCHW" if first > last else "NHWC"


def _is_like_a_picture(channels: int, sides: tuple[int, ...]) -> int:
    """How much speaks for a picture: few channels, and sides of one length."""
    return (channels <= MOST_CHANNELS) + (sides[0] == sides[1])


def _laid_out(array: Array, layout: str) -> Array:
    """A copy of inputs as int64 tokens, uint8 pixels or floats, with channels in front of height and width."""
    if layout == "NL":
        return np.array(array, np.int64)
    if layout == "NHW":
        array = array[:, None]
    if layout == "NHWC":
        array = np.moveaxis(array, -1, 1)
    stays = array.dtype.kind == "f" or (array.dtype == np.uint8 and layout in PICTURES)
    return np.array(array, array.dtype if stays else np.float64, order="C")


def moments(inputs: Array, axis: int | None, keeps_indicators: bool) -> tuple[Array, Array]:
    """Mean and standard deviation of each channel or feature.

    Args:
        inputs: ``[samples, ...]``.
        axis: The axis of channels or features; None for one mean and deviation of all numbers.
        keeps_indicators: Whether a feature that is 0 or 1 everywhere, such as a column of a one-hot code, has the mean
            0 and the deviation 1.

    Returns:
        Two float64 arrays that can be subtracted from an input and divide it. A feature that is constant has the
        deviation 1.
    """
    axes = tuple(other for other in range(inputs.ndim) if other != axis)
    shape = tuple(inputs.shape[other] if other == axis else 1 for other in range(1, inputs.ndim))
    parts = torch.from_numpy(inputs).split(CHUNK)
    count = inputs.size // max(1, int(np.prod(shape)))
    total = torch.stack([part.double().sum(axes) for part in parts]).sum(0).view(shape)
    squares = torch.stack([(part.double() - total / count).square_().sum(axes) for part in parts]).sum(0).view(shape)
    mean = (total / count).numpy()
    deviation = (squares / count).sqrt().numpy()
    deviation[(inputs.min(axes) == inputs.max(axes)).reshape(shape)] = 1
    if keeps_indicators:
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


def _warn_of_scales(inputs: Tensor, axis: int) -> None:
    """Warn of features or steps, ``axis`` of the inputs, of which some range much further than others."""
    others = [other for other in range(inputs.ndim) if other != axis]
    ranges = inputs.amax(others) - inputs.amin(others)
    ranges = ranges[ranges > 0]
    if len(ranges) and ranges.max() > MOST_SPREAD * ranges.min():
        spread = f"from {ranges.min():.3g} to {ranges.max():.3g}"
        remedy = "data.standardize or another data.layout makes them alike"
        warnings.warn(f"data: inputs have ranges {spread} along axis {axis}; {remedy}", stacklevel=3)
