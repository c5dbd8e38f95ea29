"""Checks of a module that is to become a network: a classifier."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pfl_lightning.errors import PflError
from pfl_lightning.models.network import InputKind, outputs


def two_inputs(input_shape: tuple[int, ...], kind: InputKind) -> Tensor:
    """Two random inputs, ``[2, ...]``; for tokens, whose input shape is ``(length, vocabulary)``, without padding."""
    if kind == "numbers":
        return torch.randn(2, *input_shape)
    length, vocabulary = input_shape
    return torch.randint(1, max(vocabulary, 2), (2, length))


def check_outputs(module: nn.Module, found: Iterable[Any], num_classes: int) -> None:
    """Check what a module returned for two inputs.

    Raises:
        PflError: If it is anything but one number for each class; for two classes one number is enough.
    """
    shapes = [(2, width) for width in dict.fromkeys((num_classes, outputs(num_classes)))]
    for output in found:
        if not isinstance(output, Tensor) or tuple(output.shape) not in shapes or not output.is_floating_point():
            allowed = " or ".join(f"a tensor of numbers [batch, {width}]" for _, width in shapes)
            raise PflError(f"model.network: {type(module).__name__} returns {_shown(output)}; allowed: {allowed}")


def _shown(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor {['batch', *output.shape[1:]]} of {output.dtype}".replace("'", "").replace("torch.", "")
    return f"a {type(output).__name__}" + (f" with {', '.join(map(str, output))}" if isinstance(output, dict) else "")
