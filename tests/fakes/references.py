"""Layers written out, which networks are held against."""

from collections.abc import Iterable

from torch import Tensor


def linear_layers(weights: dict[str, Tensor], values: Tensor, names: Iterable[str]) -> Tensor:
    """Linear layers with ReLU between them, on values that are flattened."""
    values = values.flatten(1)
    for number, name in enumerate(names):
        values = (values.clamp(min=0) if number else values) @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return values
