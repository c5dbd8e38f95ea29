from dataclasses import replace
from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeInt, PositiveFloat
from pfl_lightning.client import Examples, Gradient, squared_norms
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Aggregated, ServerOptimized, SharedStatistics
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, wide

PREVIOUS = "previous"  # prefix of a client's last body
TRACE = "trace"  # of a client's Fisher information
LEAST = 1e-10  # what traces have added, so that they may all be 0


class FedAS(Aggregated, ServerOptimized, SharedStatistics):
    """FedPer whose clients first align the received body with their last one, and count by their Fisher information.

    Rule of a round; z are the features of a sample, and body_i' is the body of client i after its last round:

        distance = mean over samples and features of (z(body_i) - z(body_i'))^2
        body_i   = SGD of rate align_lr for align_epochs on the distance, from body
        (body_i, head_i) = SGD for epochs on f_i, from (body_i, head_i)
        t_i  = sum over the batches of an epoch of |gradient of f_i on the batch|^2
        body = body - server_lr * (body - sum_i t_i * body_i / sum_i t_i)

    The gradient is by all parameters, t_i stands for the trace of the Fisher information, and body_i' begins as the
    first body. Clients are evaluated with what they had after their last round, (body_i', head_i) (``personal``), and
    with the shared body and head_i (``stored``). The server learns sums alone: clients upload t_i and t_i * body_i.
    Where one client takes part in a round, with ``align_epochs`` 0, it is FedPer. Models are not pruned.

    Paper: Yang, Huang, Ye, FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.

    Differs: the authors' code aligns features with the mean of those of the same class by body_i', and sums over the
    classes of a batch. It aligns by plain SGD and takes the traces without dropout; here the alignment has the momentum
    and weight decay of ``local``, and the traces have the network's dropout.

    Args:
        align_epochs: Epochs of the alignment.
        align_lr: Its rate; 0.01 in the authors' code.
        kwargs: Options of the bases.
    """

    keeps: Part = "head"
    uploads = (TRACE,)
    weighting = "uniform"
    needs = ("features", "rounds")
    uploads_models = False  # but bodies times their traces
    prunes = False
    eval_models = ("personal", "stored")

    def __init__(self, align_epochs: NonNegativeInt = 1, align_lr: PositiveFloat = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.align_epochs = align_epochs
        self.align_lr = align_lr

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The head of each client, and its last body (``previous.*``)."""
        last = prefixed(PREVIOUS, select(tensors, self.parts["body"]))
        return {**super().initial_state(tensors, num_clients, seed), **repeated(last, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Align the body, train, keep the body, and weigh what is uploaded of it."""
        if self.align_epochs:
            phase = self.phase("body", self.align_epochs, self.align_lr)
            phase = replace(phase, penalty=None, feature_loss=distances_to_last, frozen_models=(PREVIOUS,))
            received, _ = self.engine.train(cohort, received, phase, (*key, "align"))
        trained, losses = super().local_update(cohort, received, key)
        trace = self.traces(cohort, trained, (*key, TRACE))
        bodies = select(trained.own, self.shared & self.engine.trainable)
        uploads = {name: wide(trace, body) * body for name, body in bodies.items()}
        trained = trained.beside(PREVIOUS, trained.select(self.parts["body"]))
        return trained.with_own({**uploads, TRACE: trace}), losses

    def traces(self, cohort: Examples, trained: Params, key: Key) -> Tensor:
        """t_i, ``[cohort]``."""
        least = {TRACE: next(self.network.parameters()).new_full((len(cohort),), LEAST)}
        phase = replace(
            self.phase("all", 1),
            trainable=self.engine.trainable | {TRACE},
            momentum=0.0,
            penalty=None,
            gradient_transform=add_squares,
        )
        return self.engine.train(cohort, trained.with_own(least), phase, key)[0].own[TRACE]

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Divide by the sum of the traces."""
        weighted = self.shared & self.engine.trainable
        target = {name: tensor / mean[TRACE] if name in weighted else tensor for name, tensor in mean.items()}
        super().server_update(target, batch)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The client's model after its last round, or its head on the shared body."""
        if model == "personal":
            received = received.with_own(received.under(PREVIOUS).own)
        return received.select(self.parts["all"])


def distances_to_last(outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
    """The mean squared distance of each sample's features to those by the last body, ``[batch]``."""
    return (features - extras[PREVIOUS]).flatten(1).square().mean(1)


def add_squares(tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
    """Add the squared norm of a gradient to the trace, and take no step; see ``Phase.gradient_transform``."""
    extras[TRACE].add_(squared_norms(grads))
    return {}
