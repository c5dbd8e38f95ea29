from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import ExtendedLinear, Network, Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree

CONSENSUS = "consensus"  # the mean features that all are pulled to; zeros until they are known


class FedDBE(Averaging):
    """FedAvg where each client adds a mean of its own to the features, whose mean is pulled to the same at all clients.

    Rule of a round; z are the features of a mini-batch, m_i is a vector that client i keeps, and c is the consensus:

        away     = mean of z - c, over the samples of the mini-batch        # 0 until c is known
        loss     = cross-entropy(head(z + m_i)) + strength / 2 * mean(away^2)
        w_i, m_i = SGD for epochs on this loss over client i's samples, from w and m_i
        w        = w - server_lr * (w - sum_i weight_i * w_i)
        c        = sum_i weight_i * mean of z by w_i over client i's samples    # first round

    All m_i begin at zero and are a part of the head's first layer. Clients are evaluated with w and their m_i
    (``stored``).

    Paper: Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, Eliminating Domain Bias for Federated Learning in Representation
    Space, NeurIPS 2023, arXiv:2311.14975, with FedAvg.

    Differs: in the paper all clients train once before the first round, without m_i, and nothing but c is left of that;
    here the first round counts, with its m_i, and c is of its participants. The paper's mean of z is a running one over
    mini-batches; here it is that of the mini-batch, which is the paper's momentum of 1, as in the authors' command.
    Our c is a mean over all samples by the trained models, and theirs is one of these running means.

    Args:
        strength: Weight of the term, the paper's kappa; 50 in the authors' command.
        kwargs: Options of the bases.
    """

    keeps: Part = "*.personal_mean"
    uploads = (CONSENSUS,)
    needs = ("rounds",)  # the first one is another
    eval_models = ("stored",)

    def __init__(self, strength: NonNegativeFloat = 50.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strength = strength

    def extend_network(self, network: Network) -> None:
        """Add a mean to the features."""
        network.extend_head(self.head, ShiftedLinear)

    def server_state(self, tensors: Tree) -> Tree:
        """No consensus yet."""
        (mean,) = self.network.extension
        return {CONSENSUS: torch.zeros_like(tensors[mean])}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train towards the consensus, or find the client's share of it."""
        phase = self.phase(self.trains)
        has_consensus = bool(self.server.tree[CONSENSUS].any())
        if has_consensus and self.strength:
            phase = replace(phase, feature_loss=self.losses_near_consensus)
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        if not has_consensus:
            trained = trained.with_own({CONSENSUS: self.mean_features(cohort, trained)})
        return trained, losses

    def losses_near_consensus(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        amounts = extras["amounts"]
        consensus = extras[f"server.{CONSENSUS}"]
        away = (extras["weights"] * amounts) @ mean_over_steps(features[None], len(consensus))[0] - consensus
        losses: Tensor = self.sample_losses(outputs, targets) + amounts * self.strength / 2 * away.square().mean()
        return losses

    def mean_features(self, cohort: Examples, trained: Params) -> Tensor:
        """Mean features of each client's samples by its model, ``[cohort, features]``."""
        consensus = self.server.tree[CONSENSUS]
        sums = consensus.new_zeros(len(cohort), len(consensus))
        for rows, features, _, present in self.engine.features(cohort, trained.select(self.parts["all"])):
            sums[rows] += (mean_over_steps(features, len(consensus)) * present[..., None]).sum(1)
        return sums / cohort.device_counts[:, None]

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Take the consensus of the first round."""
        if CONSENSUS in mean:
            self.server.tree[CONSENSUS].copy_(mean[CONSENSUS])
        super().server_update(mean, batch)


def mean_over_steps(features: Tensor, width: int) -> Tensor:
    """Features of each sample, ``[clients, samples, width]``: of a sequence the mean over its steps."""
    return torch.unflatten(features.flatten(2), 2, (-1, width)).mean(2)


class ShiftedLinear(ExtendedLinear):
    """A linear layer that adds a vector to its inputs.

    Args:
        layer: See ``ExtendedLinear``.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        self.personal_mean = nn.Parameter(torch.zeros(layer.in_features))

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for the shifted inputs."""
        return super().forward(inputs + self.personal_mean)
