from math import floor
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import ROUNDING, ClosedUnitInterval, NonNegativeInt
from pfl_lightning.client import Examples, sparse_training
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.families.averaging import SharedStatistics
from pfl_lightning.seeding import Key
from pfl_lightning.server import overlap_attention
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, zeros_like

MASK = "mask"  # prefix of the clients' critical entries, M_i
MIX = "mix"  # prefix of u_i


class FedCAC(SharedStatistics):
    """FedAvg but for each client's critical parameters, which are averaged only with clients that have similar ones.

    Rule of round t, from 0; i and j are participants, w is the global model, and w_i is the trained one:

        start_i = M_i * u_i + (1 - M_i) * w        # w in the first round of client i
        w_i     = SGD for epochs on f_i, from start_i
        M_i     = 1 where |(w_i - start_i) * w_i| is largest, for critical_share of
                  each tensor, 0 elsewhere
        O_ij    = 1 - |M_i - M_j|_1 / (2 |M_i|_1), for j other than i
        limit   = mean of O + (t + 1) / mix_rounds * (max of O - mean of O)
        u_i     = mean of w_i and all w_j with O_ij >= limit
                  (w_i alone from round mix_rounds on)
        w       = mean of w_i

    Clients are evaluated with start_i of the next round (``personal``), and with w (``global``). The means are plain
    ones. With ``critical_share`` 0 it is FedAvg with uniform weights, and with ``critical_share`` 1 and ``mix_rounds``
    0 it is ``Local``. Statistics of BatchNorm are never critical. The server has to see each model, so that there is
    no option for sums; its step takes time quadratic in the number of participants. Models are not pruned.

    Paper: Wu, Liu, Niu, Zhu, Tang, Bold but Cautious: Unlocking the Potential of Personalized Federated Learning
    through Cautiously Aggressive Collaboration, ICCV 2023, arXiv:2309.11103.

    Differs: all of the paper's clients take part in every round. Here absent ones keep M_i and u_i, and the mean and
    the maximum of O are those among participants.

    Args:
        critical_share: Share of the entries of each tensor that are critical, the paper's tau; rounded down.
        mix_rounds: Rounds after which critical parameters are a client's own, the paper's beta.
        kwargs: Options of the bases.
    """

    weighting = "uniform"
    prunes = False
    eval_models = ("personal", "global")

    def __init__(
        self, critical_share: ClosedUnitInterval = 0.5, mix_rounds: NonNegativeInt = 100, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.critical_share = critical_share
        self.mix_rounds = mix_rounds

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """No critical parameters yet (``mask.*``), and so no mix of them (``mix.*``)."""
        zeros = zeros_like(select(tensors, self.engine.trainable))
        masks = {name: tensor.bool() for name, tensor in zeros.items()}
        rows = repeated({**prefixed(MASK, masks), **prefixed(MIX, zeros)}, num_clients)
        return {**super().initial_state(tensors, num_clients, seed), **rows}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train from where the client starts, and find the critical parameters."""
        start = self.start(received)
        trained, losses = super().local_update(cohort, start, key)
        weights = select(trained.own, self.engine.trainable)
        masks = {name: self.critical(stack, start.own[name]) for name, stack in weights.items()}
        return trained.with_own({**prefixed(MASK, masks), **prefixed(MIX, weights)}), losses

    def start(self, received: Params) -> Params:
        """The models with which clients start a round."""
        model = received.select(self.parts["all"])
        mixes = received.under(MIX).own
        masks = received.under(MASK).own
        return model.with_own({name: torch.where(mask, mixes[name], model.tree[name]) for name, mask in masks.items()})

    def critical(self, after: Tensor, before: Tensor) -> Tensor:
        """Where a tensor is critical, given what training has made of it, ``[cohort, ...]`` each; ties to the first."""
        scores = ((after - before) * after).abs().reshape(len(after), -1)
        count = floor(self.critical_share * scores.shape[1] + ROUNDING)
        return sparse_training.largest(scores, count).view_as(after)

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Mix the participants' models, and set the global one to their mean."""
        if batch.round_index < self.mix_rounds:
            ids = batch.examples.host_ids.sort().values
            weights = self.engine.trainable
            common = self.clients.inner_products([f"{MASK}.{name}" for name in weights], ids)
            shares = overlap_attention(common.cpu(), (batch.round_index + 1) / self.mix_rounds)
            self.clients.mix(shares, [f"{MIX}.{name}" for name in weights], ids=ids)
        super().server_update(mean, batch)

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Participants also send a bit for each parameter, as long as the server mixes."""
        super().count_traffic(batch, up, down)
        if batch.round_index < self.mix_rounds:
            bits = sum(tensor.numel() for tensor in select(self.shared_parameters, self.engine.trainable).values())
            up.add({MASK: torch.empty(-(-bits // 8), dtype=torch.uint8)}, len(batch.examples))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model with which a client starts a round, or the global one."""
        return self.start(received) if model == "personal" else received
