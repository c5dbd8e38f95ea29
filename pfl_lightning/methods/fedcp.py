from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import ExtendedLinear, Network, Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, select

GLOBAL = "global"  # prefix of the received body
WIDTHS = (10, 15, 20, 50)  # of the kernels, as in the authors' code


class FedCP(Averaging):
    """Shared body and head, a personal head beside it, and a shared policy that splits each sample's features.

    Rule of a round; z are the features of a sample and z' those by the received body, G is the shared head and P_i the
    client's own, v_i is the sum of the rows of P_i's weight, scaled to norm 1, and w are body and policy:

        s        = ReLU(LayerNorm(linear(z * v_i)))          # the policy
        a, 1 - a = softmax over the two numbers of each feature in s
        outputs  = P_i(z * a) + G(z * (1 - a))
        loss     = cross-entropy + strength * MMD(z, z')     # of a mini-batch
        w_i, P_i = SGD for epochs on this loss over client i's samples, from w and P_i
        G_i      = (G + P_i) / 2
        w, G     = (w, G) - server_lr * ((w, G) - sum_i weight_i * (w_i, G_i))

    MMD, a distance of two distributions, is the mean of k(z, z) + k(z', z') - 2 k(z, z') over all pairs of samples,
    where k(x, y) is the sum of e^(-|x - y|^2 / 2h) over the widths h of 10, 15, 20 and 50. All P_i begin as G. Heads
    are one linear layer. Clients are evaluated with these outputs (``stored``).

    Paper: Zhang, Hua, Wang, Song, Xue, Ma, Guan, FedCP: Separating Feature Information for Personalized Federated
    Learning via Conditional Policy, KDD 2023, arXiv:2307.01217.

    Differs: the authors' code adds Gumbel noise to s, in training and evaluation. There v_i stays the same during a
    round, and is random in the first one; here it is of P_i as it trains.

    Args:
        strength: Weight of the MMD, the paper's lambda; 5 in the authors' command.
        kwargs: Options of the bases.
    """

    keeps: Part = "*.personal.*"
    trains: Part = "body"  # all but G, since what is added to the network belongs to the body
    eval_models = ("stored",)

    def __init__(self, strength: NonNegativeFloat = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strength = strength

    def extend_network(self, network: Network) -> None:
        """Add the personal head and the policy.

        Raises:
            PflError: If the head is not one linear layer.
        """
        network.linear_head(network.cut(self.head)[1], alone=True)
        network.extend_head(self.head, PolicyHead)

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Personal heads, which begin as the shared one."""
        heads = {name: tensors[shared_name(name)] for name in self.kept}
        return super().initial_state({**tensors, **heads}, num_clients, seed)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train all but the shared head, and mix this one with the personal one."""
        phase = self.phase(self.trains)
        if self.strength:
            phase = replace(phase, feature_loss=self.losses_near_received, frozen_models=(GLOBAL,))
        start = received.beside(GLOBAL, received.select(self.parts["body"]))
        trained, losses = self.engine.train(cohort, start, phase, (*key, "all"))
        heads = {shared_name(name): tensor for name, tensor in select(trained.own, self.parts[self.keeps]).items()}
        return trained.with_own({name: (received.tree[name] + tensor) / 2 for name, tensor in heads.items()}), losses

    def losses_near_received(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        amounts = extras["amounts"]
        apart = discrepancy(features.flatten(1), extras[GLOBAL].flatten(1), extras["weights"] * amounts)
        losses: Tensor = self.sample_losses(outputs, targets) + amounts * self.strength * apart
        return losses


def shared_name(name: str) -> str:
    """The name in the shared head of a tensor of the personal one."""
    return name.replace(".personal.", ".")


def discrepancy(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """The MMD of two samples, ``[batch, features]`` each, with weights of sum 1, ``[batch]``."""
    points = torch.cat([first, second])
    signs = torch.cat([weights, -weights])
    squares = points.square().sum(1)
    distances = (squares[:, None] + squares - 2 * points @ points.T).clamp(min=0)
    kernels = (torch.exp(-distances / (2 * width)) for width in WIDTHS)
    return signs @ sum(kernels, torch.zeros_like(distances)) @ signs


class PolicyHead(ExtendedLinear):
    """A linear layer with a personal one beside it, and a policy that splits the inputs among the two.

    Args:
        layer: See ``ExtendedLinear``.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        width = layer.in_features
        self.personal = nn.Linear(width, layer.out_features, layer.bias is not None)
        self.policy = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of both layers' outputs."""
        client = F.normalize(self.personal.weight.detach().sum(0), dim=0)
        personal, shared = self.policy(inputs * client).unflatten(-1, (2, -1)).softmax(-2).unbind(-2)
        outputs: Tensor = self.personal(inputs * personal) + super().forward(inputs * shared)
        return outputs
