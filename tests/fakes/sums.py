"""Uploads of clients, and their sums."""

import torch


def uploads_of(clients, seed=0, size=1.0, entries=5):
    """Random rows of a few tensors and a loss, ``[clients, ...]``."""
    source = torch.Generator().manual_seed(seed)
    shapes = {"w": (clients, entries, 3), "b": (clients, 7), "loss": (clients,)}
    return {name: size * torch.randn(shape, generator=source, dtype=torch.float64) for name, shape in shapes.items()}


def rows(tree, places):
    """The rows of some clients."""
    return {name: stack[places] for name, stack in tree.items()}


def add(total, ids, weights, tree):
    """Encode uploads, and add them to a sum."""
    total.add(ids, total.encode(ids, weights, tree))
    return total
