"""Narrower networks inside a network: the first units of each hidden layer."""

from collections.abc import Sequence
from math import ceil
from typing import NoReturn

import torch
from torch import Tensor, nn

from pfl_lightning.bounds import ROUNDING
from pfl_lightning.errors import PflError
from pfl_lightning.models.network import Network
from pfl_lightning.tree import BATCH_NORM, movable, wide

Shape = tuple[int, ...]
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
ACROSS_CHANNELS = (nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)  # absent channels would change the others


def narrow_shapes(network: Network, rate: float) -> dict[str, Shape]:
    """Shapes of the tensors of a network with the first ``ceil(rate * units)`` units of each hidden layer alone.

    The first layer has all inputs, and the last one all outputs, in the order in which the network lists its layers. A
    linear layer after a convolution has a block of inputs for each channel, those of the first channel first. So each
    tensor of the narrow network is a corner of the full one.

    Args:
        network: The network.
        rate: Share of the units, in (0, 1].

    Returns:
        The shapes of all tensors that training may change, by name.

    Raises:
        PflError: If a layer is neither linear, nor a convolution without groups, nor BatchNorm, or does not take the
            outputs of one other layer.

    Examples:
        >>> layers = {"fc1": nn.Linear(9, 5), "relu": nn.ReLU(), "fc2": nn.Linear(5, 4)}
        >>> narrow_shapes(Network(layers), 0.5)
        {'fc1.weight': (3, 9), 'fc1.bias': (3,), 'fc2.weight': (4, 3), 'fc2.bias': (4,)}
    """
    sides = _sides(network, rate)
    shapes: dict[str, Shape] = {}
    for name, tensor in movable(network).items():
        path = name.rpartition(".")[0]
        if path not in sides:
            _refuse(network, path)
        shapes[name] = (*sides[path], *tensor.shape[2:])[: tensor.dim()]
    return shapes


def in_corner(shapes: Tensor, tensor: Tensor) -> Tensor:
    """Which entries of a tensor are in the corners of these shapes, ``[corners, ...]``.

    Args:
        shapes: ``[corners, dimensions]``.
        tensor: Only its shape matters, ``[...]``.

    Examples:
        >>> in_corner(torch.tensor([[1, 2], [2, 1]]), torch.zeros(2, 3)).int().tolist()
        [[[1, 1, 0], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]]]
    """
    corners = torch.ones(len(shapes), *tensor.shape, dtype=torch.bool, device=shapes.device)
    for axis, size in enumerate(tensor.shape):
        places = torch.arange(size, device=shapes.device).view(-1, *[1] * (tensor.dim() - axis - 1))
        corners &= places < wide(shapes[:, axis], corners)
    return corners


def _sides(network: Network, rate: float) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each layer of the narrow network, by its path; BatchNorm has no inputs."""
    weighted = [layer for layer in network.modules() if type(layer) in WEIGHTED]
    before: list[nn.Module] = []
    sides: dict[str, tuple[int, int]] = {}
    for path, layer in network.named_modules():
        if isinstance(layer, ACROSS_CHANNELS) or getattr(layer, "groups", 1) > 1:
            _refuse(network, path)
        if isinstance(layer, BATCH_NORM):
            is_hidden = 0 < len(before) < len(weighted)
            sides[path] = _first(layer.num_features, rate if is_hidden else 1.0), 0
        elif type(layer) in WEIGHTED:
            outputs = _first(_width(layer), 1.0 if layer is weighted[-1] else rate)
            inputs = _inputs(layer, before, rate)
            if not inputs:
                _refuse(network, path)
            sides[path] = outputs, inputs
            before.append(layer)
    return sides


def _inputs(layer: nn.Module, before: Sequence[nn.Module], rate: float) -> int:
    """Inputs of a layer of the narrow network; 0 if they are not the outputs of one of the layers before it."""
    inputs = layer.get_parameter("weight").shape[1]
    if not before:
        return inputs
    if isinstance(layer, nn.Linear) and not isinstance(before[-1], nn.Linear):
        pixels, rest = divmod(inputs, _width(before[-1]))
        return 0 if rest else pixels * _first(_width(before[-1]), rate)
    return _first(inputs, rate) if inputs in map(_width, before) else 0


def _width(layer: nn.Module) -> int:
    return len(layer.get_parameter("weight"))


def _first(units: int, rate: float) -> int:
    return max(1, ceil(rate * units - ROUNDING))


def _refuse(network: Network, path: str) -> NoReturn:
    kind = type(network.get_submodule(path)).__name__
    raise PflError(
        f"model.network: {network.kind} has no narrower networks inside, because of {path} ({kind}); allowed: "
        "linear layers, convolutions without groups and BatchNorm, each on the outputs of one other layer"
    )
