from types import MappingProxyType

from torch import Tensor

from pfl_lightning.client import Correlation, Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import UniformAveraging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, wide, zeros_like

CONTROL = "control"  # prefix of a client's control variate
CHANGE = "change"  # prefix of its change in a round


class SCAFFOLD(FineTuned, UniformAveraging):
    """FedAvg whose local steps are corrected by control variates, so that clients do not drift apart.

    Rule of a round; c_i is the control variate of client i, c the server's, and K_i the number of local steps:

        w_i  = SGD for epochs, each step along gradient(f_i) - c_i + c, from w
        c_i' = c_i - c + (w - w_i) / (K_i * lr)
        w    = w - server_lr * (w - mean_i w_i)
        c    = c + participants / clients * mean_i (c_i' - c_i)
        c_i  = c_i'

    All control variates begin at 0. With control variates that stay there it is FedAvg with uniform weights. Where a
    schedule has set lr to 0, none of them moves.

    Paper: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
    arXiv:1910.06378, Algorithm 1 with option II.
    """

    uploads = (CHANGE,)
    fixed_local = MappingProxyType({"optimizer": "SGD", "momentum": 0.0})

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A control variate of zeros for each client (``control.*``)."""
        controls = prefixed(CONTROL, repeated(self.server_state(tensors), num_clients))
        return {**super().initial_state(tensors, num_clients, seed), **controls}

    def server_state(self, tensors: Tree) -> Tree:
        """The server's control variate, of zeros."""
        return zeros_like(select(tensors, self.engine.trainable))

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train with corrected steps, and compute the new control variates and their changes."""
        controls = received.under(CONTROL).own
        server = received.under("server").tree
        correction = {name: server[name] - control for name, control in controls.items()}
        phase = self.phase("all", penalty=Correlation(-1.0, "correction"))
        start = received.beside("correction", Params({}, correction))
        trained, losses = self.engine.train(cohort, start, phase, (*key, "all"))
        scale = 1 / (phase.lr * phase.steps_of(cohort.device_counts))
        changes = {
            name: wide(scale, trained.own[name]) * (received.tree[name] - trained.own[name]) - server[name]
            for name in controls
        }
        if not phase.lr:
            changes = zeros_like(controls)
        controls = {name: controls[name] + change for name, change in changes.items()}
        return trained.with_own({**prefixed(CONTROL, controls), **prefixed(CHANGE, changes)}), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Take the step of FedAvg, and move the server's control variate."""
        super().server_update(mean, batch)
        share = len(batch.examples) / batch.training_clients
        for name, control in self.server.tree.items():
            control.add_(mean[f"{CHANGE}.{name}"], alpha=share)
