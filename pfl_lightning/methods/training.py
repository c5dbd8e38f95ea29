"""How a round's clients train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.server import client_weights
from pfl_lightning.tree import Tree, add_to, mix, select

if TYPE_CHECKING:
    from pfl_lightning.methods.base import Method


def train_clients(method: Method, batch: Round) -> tuple[Tree, Tensor]:
    """Train the participants of a round; what they keep goes into ``method.clients``.

    Returns:
        The weighted mean of what they upload, and that of their training losses.
    """
    dtype = next(method.network.parameters()).dtype
    weights = client_weights(batch.examples.counts, method.weighting).to(method.device, dtype, non_blocking=True)

    def work(start: int, cohort: Examples) -> tuple[Tensor, Tree, Tree, Tensor]:
        key = (batch.seed, "train", batch.round_index)
        trained, losses = method.local(cohort, method.received(cohort.ids), key)
        share = weights[start : start + len(cohort)]
        kept = select(trained.own, method.clients.names)
        return cohort.ids, kept, mix(share, select(trained.own, method.shared)), (share * losses).sum()

    mean: Tree = {}
    loss = weights.new_zeros(())
    for ids, kept, share_of_mean, share_of_loss in method.chunks.map(work, batch.examples):
        add_to(mean, share_of_mean)
        method.clients.scatter(ids, kept)
        loss += share_of_loss
    return mean, loss
