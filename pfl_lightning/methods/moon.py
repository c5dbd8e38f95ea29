from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat
from pfl_lightning.client import Examples
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select

# prefixes of the models that features are compared with
GLOBAL = "global"
PREVIOUS = "previous"


class MOON(FineTuned, Averaging):
    """FedAvg with a contrastive term: features like those of the global model, and unlike those of a client's last one.

    Rule of a round; z are the features of a sample by the model that trains, z_g by the received one and z_p by the one
    that the client had at the end of its last round, and s is the cosine:

        near, far = e^(s(z, z_g) / t), e^(s(z, z_p) / t)
        loss = cross-entropy - mu * log(near / (near + far))
        w_i  = SGD for epochs on the mean of this loss over the samples of client i, from w
        w    = w - server_lr * (w - sum_i weight_i * w_i)

    A client's last model begins as the first global one. With ``mu`` 0 it is FedAvg.

    Paper: Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv:2103.16257, Algorithm 1.

    Differs: the paper compares outputs of a projection head of two layers, which it adds to its networks; here the
    features are the inputs of the network's head, whatever that is.

    Args:
        mu: Weight of the contrastive term.
        temperature: The t; the smaller, the sharper.
        kwargs: Options of the bases.
    """

    needs = ("features",)

    def __init__(self, mu: NonNegativeFloat = 1.0, temperature: PositiveFloat = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mu = mu
        self.temperature = temperature

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The body of each client's last model (``previous.*``)."""
        last = prefixed(PREVIOUS, select(tensors, self.parts["body"]))
        return {**super().initial_state(tensors, num_clients, seed), **repeated(last, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train with the contrastive term, and keep the body."""
        phase = self.phase("all")
        if self.mu:
            phase = replace(phase, feature_loss=self.contrastive_losses, frozen_models=(GLOBAL, PREVIOUS))
        start = received.beside(GLOBAL, received.select(self.parts["body"]))
        trained, losses = self.engine.train(cohort, start, phase, (*key, "all"))
        return trained.beside(PREVIOUS, trained.select(self.parts["body"])), losses

    def contrastive_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        near, far = (
            torch.cosine_similarity(features.flatten(1), extras[prefix].flatten(1), dim=1) / self.temperature
            for prefix in (GLOBAL, PREVIOUS)
        )
        contrast = extras["amounts"] * self.mu * F.softplus(far - near)
        losses: Tensor = self.sample_losses(outputs, targets) + contrast
        return losses
