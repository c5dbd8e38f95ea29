from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples, Ridge
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import ExtendedLinear, Network, Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree

RECEIVED = "received"  # prefix of the embeddings that the features are pulled to


class GPFL(Averaging):
    """Shared body whose features a valve turns into two: one for a personal head, one near shared class embeddings.

    Rule of a round; z are the features of a sample of class y, P_i is the client's head, E has an embedding of each
    class, E' is the received E, n_i has the shares of the classes among client i's samples, and w are body, E and V:

        V(z, e)  = ReLU((gamma(e) + 1) * z + beta(e))     # both are LayerNorm(ReLU(linear(e)))
        outputs  = P_i(V(z, sum_y n_iy E_y))
        g        = V(z, mean_y E_y)
        loss     = cross-entropy(outputs) + cross-entropy(cosines of g and all embeddings)
                   + strength * |g - E'_y| + decay / 2 * |E, V|^2
        w_i, P_i = SGD for epochs on this loss over client i's samples, from w and P_i
        w        = w - server_lr * (w - sum_i weight_i * w_i)

    No gradient goes through the second argument of V. Clients are evaluated with these outputs (``stored``); until a
    client has taken part, its n_i are all the same.

    Paper: Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan, GPFL: Simultaneously Learning Global and Personalized Feature
    Information for Personalized Federated Learning, ICCV 2023, arXiv:2308.10279.

    Differs: in the authors' code the second argument of V stays the same during a round, is made of the embeddings
    that the client had at the end of its last one, and is zero in the first; here it is of E as it trains, and
    when evaluated of the received E. There the last term of the loss is the norm of a whole mini-batch of differences.

    Args:
        strength: Weight of the distance to the embeddings, the paper's lambda; 0.01 in the authors' command.
        decay: Further weight decay of embeddings and valve, the paper's mu; 0.1 in the authors' command.
        kwargs: Options of the bases.
    """

    keeps: Part = "head|*.class_shares"
    needs = ("classes",)
    eval_models = ("stored",)

    def __init__(self, strength: NonNegativeFloat = 0.01, decay: NonNegativeFloat = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strength = strength
        self.decay = decay

    def extend_network(self, network: Network) -> None:
        """Add the embeddings and the valve."""
        network.extend_head(self.head, lambda layer: GuidedHead(layer, self.task.classes))

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Count the classes, and train everything."""
        layer = self.network.linear_head(self.parts["head"])
        shares = f"{layer}.class_shares"
        counts = cohort.class_counts(self.task.classes).to(received.tree[shares])
        start = received.with_own({shares: counts / counts.sum(1, keepdim=True)})
        start = start.beside(RECEIVED, received.select({f"{layer}.embeddings"}))
        decay = Ridge(self.decay, self.network.extension)
        phase = replace(self.phase("all", penalty=decay), feature_loss=self.guided_losses)
        return self.engine.train(cohort, start, phase, (*key, "all"))

    def guided_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        path = self.network.linear_head(self.parts["head"])
        embeddings = extras[f"{path}.embeddings"]
        received = extras[f"{RECEIVED}.{path}.embeddings"]
        valve = self.network.get_submodule(f"{path}.valve")
        tensors = Params(extras, {}).under(f"{path}.valve").shared
        generic = functional_call(valve, tensors, (features.flatten(1), embeddings.detach().mean(0)))
        cosines = F.normalize(generic, dim=1) @ F.normalize(embeddings, dim=1).T
        guides = F.cross_entropy(cosines, targets, reduction="none") + self.strength * (
            generic - received[targets]
        ).norm(dim=1)
        losses: Tensor = self.sample_losses(outputs, targets) + guides
        return losses


class GuidedHead(ExtendedLinear):
    """A linear layer whose inputs go through a valve, by the embeddings of the client's classes.

    Args:
        layer: See ``ExtendedLinear``.
        num_classes: Number of classes.
    """

    class_shares: Tensor

    def __init__(self, layer: nn.Linear, num_classes: int) -> None:
        super().__init__(layer)
        self.embeddings = nn.Parameter(torch.randn(num_classes, layer.in_features))
        self.register_buffer("class_shares", torch.full((num_classes,), 1 / num_classes))
        self.valve = Valve(layer.in_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for what the valve lets through."""
        return super().forward(self.valve(inputs, self.class_shares @ self.embeddings.detach()))


class Valve(nn.Module):
    """Scales and shifts features, by numbers that come from an embedding.

    Args:
        width: Number of features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2)
        )

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        """What the valve lets through, ``[batch, width]``, of features ``[batch, width]``."""
        return F.relu((self.gamma(embedding) + 1) * features + self.beta(embedding))
