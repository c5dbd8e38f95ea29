"""Sparse training: how dense each tensor of a model is, and which of its entries a client holds.

A client's mask has a fixed number of ones in each tensor, and its model is zero elsewhere.
"""

from collections.abc import Mapping, Sequence
from math import ceil, cos, floor, pi, prod
from typing import Literal

import torch
from torch import Tensor

from pfl_lightning.bounds import ROUNDING
from pfl_lightning.seeding import Key, random_bits
from pfl_lightning.tree import Tree

Layers = Literal["erk", "uniform"]


def erk_densities(shapes: Mapping[str, Sequence[int]], density: float) -> dict[str, float]:
    """Densities in proportion to the sum of a tensor's dimensions over their product, up to 1 (Erdos-Renyi kernel).

    So small tensors are denser, and biases are the densest. What does not fit into a tensor goes to the others.

    Paper: Evci et al., Rigging the Lottery: Making All Tickets Winners, ICML 2020, arXiv:1911.11134.

    Args:
        shapes: Shapes of the tensors of a model.
        density: Share of the entries of the model that a client holds, in (0, 1].

    Returns:
        Density of each tensor, in (0, 1]; their mean, weighted by the sizes of the tensors, is ``density``.

    Examples:
        >>> found = erk_densities({"fc1": (10, 20), "fc2": (20, 30)}, 0.2)  # 30 and 50 times 2
        >>> {name: round(density, 6) for name, density in found.items()}
        {'fc1': 0.3, 'fc2': 0.166667}
    """
    sizes, sums = ({name: of(shape) for name, shape in shapes.items()} for of in (prod, sum))
    densities = dict.fromkeys(shapes, 1.0)
    open_names = set(shapes)
    entries = density * sum(sizes.values())
    while open_names:
        scale = entries / sum(sums[name] for name in open_names)
        full = {name for name in open_names if scale * sums[name] >= sizes[name]}
        if not full:
            return densities | {name: scale * sums[name] / sizes[name] for name in open_names}
        open_names -= full
        entries -= sum(sizes[name] for name in full)
    return densities


def first_masks(key: Key, clients: int, model: Tree, density: float, layers: Layers) -> Tree:
    """Draw random masks; each depends only on the key and the client's number.

    Args:
        key: Key of the draw.
        clients: Number of clients.
        model: The tensors to mask, ``[...]``; only their shapes and devices matter.
        density: Share of the entries of the model to hold, in (0, 1]; rounded down in each tensor to whole entries.
        layers: How dense the tensors are: ``erk`` or ``uniform``.

    Returns:
        Booleans by the names of the tensors, ``[clients, ...]``.
    """
    shapes = {name: tensor.shape for name, tensor in model.items()}
    densities = erk_densities(shapes, density) if layers == "erk" else dict.fromkeys(shapes, density)
    return {name: _drawn((*key, name), clients, tensor, densities[name]) for name, tensor in model.items()}


def _drawn(key: Key, clients: int, tensor: Tensor, density: float) -> Tensor:
    entries = tensor.numel()
    ones = floor(density * entries + ROUNDING) if entries > 1 else 1  # a single number is held
    masks = torch.empty(clients, entries, dtype=torch.bool, device=tensor.device)
    for client in torch.arange(clients, device=tensor.device).split(
        1
    ):  # one by one: draws take far more room than masks
        masks[client] = largest(random_bits(key, client, entries), ones)
    return masks.view(clients, *tensor.shape)


def drop_ratio(first: float, completed: int, rounds: int) -> float:
    """Share of a client's entries that it drops in a round: cosine annealing from ``first`` to 0.

    Paper: Dai et al., DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse
    Training, ICML 2022, arXiv:2206.00187.

    Args:
        first: The share in the first round, in [0, 1].
        completed: Rounds completed before this one.
        rounds: Rounds until the share is 0.

    Examples:
        >>> [round(drop_ratio(0.5, completed, rounds=500), 7) for completed in (0, 100, 250, 400, 500, 501)]
        [0.5, 0.4522542, 0.25, 0.0477458, 0.0, 0.0]
    """
    return first / 2 * (1 + cos(pi * min(completed / rounds, 1)))


def random_scores(key: Key, ids: Tensor, masks: Tree) -> Tree:
    """Scores with which ``moved_masks`` grows random entries.

    Args:
        key: Key of the draw.
        ids: Client ids, ``[clients]``.
        masks: The clients' masks, ``[clients, ...]``.
    """
    return {name: random_bits((*key, name), ids, mask[0].numel()).view_as(mask) for name, mask in masks.items()}


def moved_masks(models: Tree, masks: Tree, scores: Tree, ratio: float) -> Tree:
    """In each tensor, drop the smallest weights and grow as many others: those with the largest absolute scores.

    A weight that was just dropped can grow again, so there are always enough candidates. Ties go to the first.

    Args:
        models: Tensors of some clients, ``[clients, ...]``; those without a mask do not matter.
        masks: Booleans with equally many ones for each client, ``[clients, ...]``.
        scores: Score of each weight, such as its gradient, ``[clients, ...]``.
        ratio: Share of the ones to drop, in [0, 1]; rounded up to whole weights.

    Returns:
        Booleans with as many ones as before, ``[clients, ...]``.

    Examples:
        >>> w, g = torch.tensor([[0.5, -0.1, 0.3, 0.0, 0.0]]), torch.tensor([[9.0, 0.01, 9.0, 0.2, -0.7]])
        >>> moved_masks({"w": w}, {"w": w != 0}, {"w": g}, ratio=1 / 3)  # drops -0.1
        {'w': tensor([[ True, False,  True, False,  True]])}
    """
    return {name: _moved(models[name], mask, scores[name], ratio) for name, mask in masks.items()}


def _moved(weights: Tensor, masks: Tensor, scores: Tensor, ratio: float) -> Tensor:
    sizes, scores, held = (rows.reshape(len(rows), -1) for rows in (weights.abs(), scores.abs(), masks))
    ones = int(held[0].sum())
    count = ceil(ratio * ones - ROUNDING)
    survivors = largest(sizes.where(held, -1), ones - count)
    return (survivors | largest(scores.where(~survivors, -1), count)).view_as(masks)


def largest(values: Tensor, count: int) -> Tensor:
    """Where the largest values of each row are, ties to the first. Selecting is far faster than sorting.

    Args:
        values: Scores, ``[rows, entries]``.
        count: How many, in each row.

    Examples:
        >>> largest(torch.tensor([[0.1, 0.3, 0.2, 0.2]]), 2)
        tensor([[False,  True,  True, False]])
    """
    if not count:
        return torch.zeros_like(values, dtype=torch.bool)
    least = values.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    above = values > least
    equal = values == least
    return above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))
