from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import Share
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods.families.averaging import ServerOptimized
from pfl_lightning.methods.families.nested import MASK, Nested
from pfl_lightning.models import narrow_shapes
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, mix, movable, select, sum_type
from pfl_lightning.uplink import BITS, bits_of_entries


class HeteroFL(Nested, ServerOptimized):
    """FedAvg with networks of unequal widths, which are nested: weak clients train the first units of each layer alone.

    Rule of a round; client i has rate r_i, number i of ``rates`` modulo their number, and its mask m_i holds the first
    ceil(r_i * units) units of every hidden layer, all inputs of the first layer and all outputs of the last one:

        w_i  = SGD for epochs on f_i, from m_i * w, and after each step w_i = m_i * w_i
        mean = (sum_i m_i * w_i) / (sum_i m_i), of each entry over participants that hold it
        w    = w - server_lr * (w - mean)       # unchanged where nobody holds it

    Clients are evaluated with w (``global``), and with m_i * w, which computes what a network of that width computes
    (``personal``). If all rates are 1 it is FedAvg with uniform weights, and if all are r that of the narrow network.
    Clients send and receive the entries that they hold; computing takes as long as for the whole network. The server
    knows the masks, and else learns the sum of the changes alone. Models are not pruned.

    Paper: Diao, Ding, Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
    Clients, ICLR 2021, arXiv:2010.01264, Algorithm 1.

    Differs: the paper divides what narrow layers put out by r_i in training, which masks cannot do; it sets the outputs
    for classes that a client lacks to 0, and computes BatchNorm's statistics in the end, where we average them. It also
    has rates that are drawn anew in each round.

    Args:
        rates: Shares of the units of hidden layers, in (0, 1].
        kwargs: Options of the bases.

    Raises:
        PflError: If there is no rate, or later if the network has no narrower ones inside.
    """

    weighting = "uniform"

    def __init__(self, rates: Sequence[Share] = (1.0, 0.5, 0.25, 0.125, 0.0625), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not rates:
            raise PflError("model.rates must be one number or more, got none")
        self.rates = rates

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the network, and find what clients of each rate hold of its tensors; see ``Method.build``."""
        super().build(*args, **kwargs)
        self.corners = [narrow_shapes(self.network, rate) for rate in self.rates]

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train what each client holds, and upload all else unchanged, which takes no bits."""
        trained, losses = super().local_update(cohort, received, key)
        uploads: Tree = {}
        for name, mask in select(trained.under(MASK).own, self.shared).items():
            uploads[name] = torch.where(mask, trained.own[name], received.tree[name])
            uploads[BITS + name] = bits_of_entries(mask, trained.own[name])
        return trained.with_own(uploads), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Step to the mean over those that hold an entry."""
        rates = len(self.rates)
        weights = torch.zeros(rates, dtype=batch.weights.dtype)
        weights.index_add_(0, self.kinds(batch.examples.host_ids), batch.weights)
        masks = select(self.masks(torch.arange(rates, device=self.device)), mean)
        shares = mix(weights.to(self.device, sum_type(self.engine.dtype)), masks)
        before = movable(self.network)
        among_holders = {name: step_of_holders(before[name], mean[name], share) for name, share in shares.items()}
        super().server_update(among_holders, batch)


def step_of_holders(before: Tensor, mean: Tensor, share: Tensor) -> Tensor:
    """Where its holders have moved a tensor, given the mean over all participants, of whom a share holds each entry."""
    return torch.where(share > 0, before + (mean - before) / share, before).to(mean)
