"""Sparse training: how dense each tensor of a model is, and which of its entries a client holds.

A client's mask has a fixed number of ones in each tensor, and its model is zero elsewhere.
"""

from collections.abc import Mapping, Sequence
from math import ceil, cos, floor, inf, pi, prod

import torch
from torch import Tensor

from pfl_lightning.seeding import Key, permutations

ROUNDING = 1e-9  # a share of entries may come out a little above or below a whole number


def uniform_densities(shapes: Mapping[str, Sequence[int]], density: float) -> dict[str, float]:
    """The same density for every tensor.

    Args:
        shapes: Shapes of the tensors of a model.
        density: Share of the entries of the model that are held, in (0, 1].
    """
    return dict.fromkeys(shapes, density)


def erk_densities(shapes: Mapping[str, Sequence[int]], density: float) -> dict[str, float]:
    """Densities in proportion to the sum of a tensor's dimensions over their product, up to 1 (Erdos-Renyi kernel).

    So small tensors are denser, and biases the densest. What a tensor cannot take goes to the others.

    Paper: Evci et al., Rigging the Lottery: Making All Tickets Winners, ICML 2020, arXiv:1911.11134.

    Args:
        shapes: Shapes of the tensors of a model.
        density: Share of the entries of the model that are held, in (0, 1].

    Returns:
        Density of each tensor, in (0, 1]; their mean, weighted by the sizes of the tensors, is ``density``.

    Example:
        >>> found = erk_densities({"fc1": (10, 20), "fc2": (20, 30)}, 0.2)  # 30 and 50 times 2
        >>> {name: round(density, 6) for name, density in found.items()}
        {'fc1': 0.3, 'fc2': 0.166667}
    """
    sizes, sums = ({name: of(shape) for name, shape in shapes.items()} for of in (prod, sum))
    densities, open_names = dict.fromkeys(shapes, 1.0), set(shapes)
    entries = density * sum(sizes.values())
    while open_names:
        scale = entries / sum(sums[name] for name in open_names)
        full = {name for name in open_names if scale * sums[name] >= sizes[name]}
        if not full:
            return densities | {name: scale * sums[name] / sizes[name] for name in open_names}
        open_names -= full
        entries -= sum(sizes[name] for name in full)
    return densities


def random_masks(key: Key, clients: int, tensor: Tensor, density: float) -> Tensor:
    """Draw a mask for each client; each depends on the key and the client's number alone.

    Args:
        key: Key of the draw.
        clients: Number of clients.
        tensor: Tensor to mask, ``[...]``; only its shape and device matter.
        density: Share of ones, rounded down to whole entries.

    Returns:
        Booleans, ``[clients, ...]``.
    """
    entries = tensor.numel()
    ones = floor(density * entries + ROUNDING)
    masks = torch.zeros(clients, entries, dtype=torch.bool, device=tensor.device)
    for mask, client in zip(masks, torch.arange(clients, device=tensor.device).split(1), strict=True):
        # one client at a time: what is drawn is eight times as large as a mask
        mask[permutations(key, client, torch.full_like(client, entries), entries, ones)[0]] = True
    return masks.view(clients, *tensor.shape)


def drop_ratio(first: float, completed: int, rounds: int) -> float:
    """Share of a client's entries that it gives up in a round: a falling half wave of a cosine, then 0.

    Paper: Dai et al., DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse
    Training, ICML 2022, arXiv:2206.00187.

    Args:
        first: The share in the first round, in [0, 1].
        completed: Rounds completed before this one.
        rounds: Rounds until it is 0.

    Example:
        >>> [round(drop_ratio(0.5, completed, rounds=500), 7) for completed in (0, 100, 250, 400, 500, 501)]
        [0.5, 0.4522542, 0.25, 0.0477458, 0.0, 0.0]
    """
    return first / 2 * (1 + cos(pi * min(completed / rounds, 1)))


def moved_masks(weights: Tensor, masks: Tensor, scores: Tensor, ratio: float) -> Tensor:
    """Give up the smallest weights, and take as many other entries: those with the highest scores.

    An entry that was just given up can be taken again, so that there are always enough. Of equals the first are taken.

    Args:
        weights: ``[clients, ...]``.
        masks: Booleans with equally many ones for each client, ``[clients, ...]``.
        scores: What speaks for an entry, from 0, such as the absolute gradient, ``[clients, ...]``.
        ratio: Share of the ones to give up, in [0, 1]; rounded up to whole entries.

    Returns:
        Booleans, with as many ones as before, ``[clients, ...]``.

    Example:
        >>> weights, scores = torch.tensor([[0.5, -0.1, 0.3, 0.0]]), torch.tensor([[9.0, 0.01, 9.0, 0.2]])
        >>> moved_masks(weights, weights != 0, scores, ratio=0.25)  # gives up the entry 1 and takes the entry 3
        tensor([[ True, False,  True,  True]])
    """
    weights, scores, moved = weights.flatten(1), scores.flatten(1), masks.flatten(1)
    count = ceil(ratio * int(moved[0].sum()) - ROUNDING)
    given_up = weights.abs().where(moved, inf).argsort(dim=1, stable=True)[:, :count]
    moved = moved.scatter(1, given_up, False)
    taken = scores.where(~moved, -1).argsort(dim=1, descending=True, stable=True)[:, :count]
    return moved.scatter(1, taken, True).view_as(masks)
