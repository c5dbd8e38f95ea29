from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Correlation, Examples, Proximity, total
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import UniformAveraging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, zeros_like

DRIFT = "drift"  # prefix of the sum of a client's moves so far


class FedDyn(FineTuned, UniformAveraging):
    """FedAvg with a regularizer that changes from round to round, so that the clients' optima are the server's.

    Rule of a round; d_i is the sum of the moves of client i so far, and d that of the server:

        w_i = SGD for epochs on f_i + alpha * <d_i, .> + alpha / 2 * |. - w|^2, from w
        d_i = d_i + (w_i - w)
        d   = d + participants / clients * (mean_i w_i - w)
        w   = w - server_lr * (w - mean_i w_i - d)

    In the paper's words its h_i is -alpha * d_i, and its h is -alpha * d. With ``alpha`` 0 it is FedAvg with uniform
    weights.

    Paper: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv:2111.04263, Algorithm 1.

    Differs: the rule is the paper's; its authors' code divides alpha by the client's samples relative to their mean,
    clips gradients to norm 10, and evaluates the mean of the w_i without d.

    Args:
        alpha: Strength of the regularizer.
        kwargs: Options of the bases.
    """

    def __init__(self, alpha: NonNegativeFloat = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = alpha

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """No moves so far (``drift.*``)."""
        drifts = prefixed(DRIFT, self.server_state(tensors))
        return {**super().initial_state(tensors, num_clients, seed), **repeated(drifts, num_clients)}

    def server_state(self, tensors: Tree) -> Tree:
        """The server's drift, of zeros."""
        return zeros_like(select(tensors, self.engine.trainable))

    def broadcast(self) -> Tree:
        """The shared model alone: clients need no drift but their own."""
        return select(super().broadcast(), self.shared)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train with the regularizer, and add the move to the client's own."""
        anchor = received.select(self.engine.trainable)
        penalty = total(Proximity(self.alpha), Correlation(-self.alpha, DRIFT)) if self.alpha else None
        phase = self.phase("all", penalty=penalty)
        trained, losses = self.engine.train(cohort, received.beside("anchor", anchor), phase, (*key, "all"))
        drifts = received.under(DRIFT).own
        moved = {name: drift + trained.own[name] - anchor.tree[name] for name, drift in drifts.items()}
        return trained.with_own(prefixed(DRIFT, moved)), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Move the server's drift, and step to the mean beyond it."""
        share = len(batch.examples) / batch.training_clients
        target = dict(mean)
        for name, drift in self.server.tree.items() if self.alpha else ():
            drift.add_(mean[name] - self.shared_parameters[name], alpha=share)
            target[name] = mean[name] + drift
        super().server_update(target, batch)
