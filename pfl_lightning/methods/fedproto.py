from dataclasses import replace
from math import log
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pfl_lightning.client import Examples
from pfl_lightning.client.layers import part
from pfl_lightning.methods.families.averaging import Aggregated
from pfl_lightning.methods.families.prototypes import PROTOTYPES, SHARES, Prototypes
from pfl_lightning.models import Network, Part
from pfl_lightning.models.network import num_outputs
from pfl_lightning.seeding import Key
from pfl_lightning.tasks.classification import as_outputs
from pfl_lightning.tree import Params


class FedProto(Prototypes, Aggregated):
    """Clients keep their models and share prototypes alone: the mean features of each class.

    Rule of a round; z are the features of a sample of class y, and p_y is the global prototype of the class:

        loss = cross-entropy + strength * mean((z - p_y)^2)    # the term once p_y is known
        w_i  = SGD for epochs on the mean of this loss over the samples of client i, from w_i
        p_y  = mean of the clients' features of class y, over all samples of the participants

    Clients are evaluated with their own models (``stored``). With ``strength`` 0 it is Local. No model is sent, and so
    none is pruned.

    Paper: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, arXiv:2105.00243,
    Algorithm 1.

    ``predict: nearest`` gives a sample the class whose prototype is nearest to its features, as the authors do; until
    there are prototypes, outputs decide.

    Differs: the term is the squared distance of each sample's features to the prototype, as in the authors' code, and
    not that of their mean; its mean over features has the same scale in any network. A prototype is the mean over
    samples by the trained models, where that code takes the mean over clients of what an epoch of training met. A class
    that no participant has keeps its prototype, which that code forgets. By default outputs decide about classes, and
    not the nearest prototype, which is chosen among those of all classes, where the authors take the client's.

    Args:
        predict: What decides about the class of a sample.
        kwargs: Options of the bases.
    """

    keeps: Part = "all"
    eval_models = ("stored",)
    prunes = False

    def __init__(self, predict: Literal["head", "nearest"] = "head", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.predict = predict

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train near the prototypes, and compute the sums of the client's own."""
        phase = self.phase("all")
        if self.strength:
            phase = replace(phase, feature_loss=self.losses_near_prototypes)
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        return self.with_prototypes(cohort, trained), losses

    def eval_network(self, model: str, params: Params) -> Network:
        """The network, or its body before the nearest prototype."""
        prototypes, shares = (self.server.tree[name] for name in (PROTOTYPES, SHARES))
        if self.predict == "head" or not (shares > 0).any():
            return self.network
        body = dict(part(self.network, 0, self.engine.body_layers()).named_children())
        return Network({**body, "nearest": Nearest(prototypes, shares > 0)})


class Nearest(nn.Module):
    """A head that decides for the class with the nearest prototype.

    Args:
        prototypes: Prototypes of all classes, ``[classes, features]``.
        known: Which of them there are, ``[classes]``; the others are never nearest.
    """

    prototypes: Tensor
    known: Tensor

    def __init__(self, prototypes: Tensor, known: Tensor) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("known", known)

    def forward(self, features: Tensor) -> Tensor:
        """Log-probabilities, a softmax of minus squared distances; of two classes the logit, ``[batch, outputs]``."""
        near = 2 * features.flatten(1) @ self.prototypes.T - self.prototypes.square().sum(1)
        logs = near.masked_fill(~self.known, -torch.inf).log_softmax(1).clamp(min=log(torch.finfo(near.dtype).tiny))
        return as_outputs(logs, num_outputs(len(self.known)))
