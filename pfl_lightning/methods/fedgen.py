from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from pfl_lightning.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import Architectures, ExtendedLinear, Network, Part
from pfl_lightning.seeding import Key, seed_of, uniforms
from pfl_lightning.tree import Params, Tree, prefixed, select

GENERATOR = "generator"  # prefix
SHARES = "class_shares"  # q_c: shares of each class among the participants' samples, summed over the rounds so far
# of the companion of each sample
FEATURES = "companion_features"
CLASSES = "companion_classes"


class FedGen(Averaging):
    """LG-FedAvg whose server trains a generator of features, from which the clients' heads learn as well.

    Rule of a round; each sample has a companion: a class c, drawn in proportion to q_c, and noise u, uniform on [0, 1];
    n_ic of client i's n_i samples are of class c, and G is the generator:

        loss           = cross-entropy + strength * cross-entropy(head(G(u, c)), c)
        body_i, head_i = SGD for epochs on the mean of this loss over client i's samples,
                         from body_i, head
        keep body_i
        head           = head - server_lr * (head - sum_i weight_i * head_i)
        q_c            = q_c + sum_i weight_i * n_ic / n_i
        G              = generator_steps of Adam on
                         cross-entropy(sum_i weight_i * head_i(G(u, c)), c)

    The first round has no second term. G has one hidden layer, with LayerNorm and ReLU. The head is one linear layer,
    so the mean of the clients' outputs is that of their mean head, and the server needs sums alone. Clients are
    evaluated with their own bodies and the shared head (``stored``). With ``strength`` 0 it is LG-FedAvg whose ``head``
    is one layer.

    Paper: Zhu, Hong, Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021,
    arXiv:2105.10056, Algorithm 1, with only the heads shared.

    Differs: the paper shares whole models and adds a term that keeps generated features apart; HtFLlib, like us, does
    neither. Both draw companions for each mini-batch; here a sample keeps its companion during a round. Both have
    BatchNorm in G, where LayerNorm gives a companion the same features whatever else is drawn. As in HtFLlib, Adam
    begins anew in each round; there clients use the untrained G in the first one.

    Args:
        strength: Weight of the companions; in the authors' code 10, times 0.98 after each round.
        noise: Entries of u.
        hidden: Width of G's hidden layer.
        generator_lr: Learning rate of G.
        generator_steps: Steps of G in a round.
        generator_batch: Companions in a step of G.
        kwargs: Options of the bases.
    """

    keeps: Part = "body"
    uploads = (SHARES,)
    needs = ("classes", "features")

    def __init__(
        self,
        strength: NonNegativeFloat = 1.0,
        noise: PositiveInt = 32,
        hidden: PositiveInt = 512,
        generator_lr: PositiveFloat = 0.005,
        generator_steps: NonNegativeInt = 100,
        generator_batch: PositiveInt = 128,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.strength = strength
        self.noise = noise
        self.hidden = hidden
        self.generator_lr = generator_lr
        self.generator_steps = generator_steps
        self.generator_batch = generator_batch

    def extend_network(self, network: Network) -> None:
        """Let the loss see the head, which must be one linear layer."""
        network.linear_head(network.cut(self.head)[1], alone=True)
        network.extend_head(self.head, VisibleLinear)

    def complete_networks(self, networks: Architectures, seed: int) -> None:
        """Keep the seed for the generator."""
        self.generator_seed = seed_of(seed, GENERATOR)

    def server_state(self, tensors: Tree) -> Tree:
        """A random generator (``generator.*``), and no shares of classes yet, ``[classes]``."""
        weight = tensors[f"{self.network.linear_head(self.parts['head'])}.weight"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.generator_seed)
            first = nn.Linear(self.noise + self.task.classes, self.hidden)
            last = nn.Linear(self.hidden, weight.shape[1])
        layers = nn.ModuleDict({"fc1": first, "norm": nn.LayerNorm(self.hidden), "fc2": last}).to(weight)
        return {**prefixed(GENERATOR, layers.state_dict()), SHARES: weight.new_zeros(self.task.classes)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train body and head beside companions, and count the classes."""
        phase = self.phase("all")
        if self.strength:
            received = received.with_own(self.companions(cohort, received, key))
            phase = replace(phase, feature_loss=self.losses_with_companions, sample_rows=(FEATURES, CLASSES))
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        shares = cohort.class_counts(self.task.classes) / cohort.device_counts[:, None]
        return trained.without((FEATURES, CLASSES)).with_own({SHARES: shares.to(self.engine.dtype)}), losses

    def companions(self, cohort: Examples, received: Params, key: Key) -> Tree:
        """Features and class of a companion of each sample, ``[cohort, samples, ...]``."""
        numbers = uniforms((*key, GENERATOR), cohort.ids, cohort.longest * (1 + self.noise))
        numbers = numbers.unflatten(1, (cohort.longest, -1))
        noise = numbers[..., 1:].to(self.engine.dtype)
        return self.engine.each(companions_of, received.under("server"), numbers[..., 0], noise)

    def losses_with_companions(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        term = self.sample_losses(self.head_outputs(extras, extras[FEATURES]), extras[CLASSES])
        is_trained = extras[f"server.{SHARES}"].sum() > 0
        losses: Tensor = self.sample_losses(outputs, targets) + extras["amounts"] * self.strength * is_trained * term
        return losses

    def head_outputs(self, tensors: Tree, features: Tensor) -> Tensor:
        """Outputs of the head among some tensors, ``[samples, outputs]``, for ``[samples, features]``."""
        return linear(tensors, self.network.linear_head(self.parts["head"]), features)

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Step to the mean head, and train the generator on it."""
        super().server_update(mean, batch)
        state = self.server.tree
        state[SHARES] += mean[SHARES]
        head = {name: tensor.to(state[SHARES]) for name, tensor in select(mean, self.parts["head"]).items()}
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in state.items() if name != SHARES}
        optimizer = Adam(leaves.values(), lr=float(self.generator_lr))
        source = torch.Generator().manual_seed(seed_of(batch.seed, GENERATOR, batch.round_index))
        shares = state[SHARES].double().cpu()
        for _ in range(self.generator_steps):
            classes = torch.multinomial(shares, self.generator_batch, replacement=True, generator=source)
            noise = torch.rand(self.generator_batch, self.noise, generator=source)
            with torch.enable_grad():
                features = generated(leaves, noise.to(state[SHARES]), classes.to(self.device))
                loss = self.sample_losses(self.head_outputs(head, features), classes.to(self.device)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for name, leaf in leaves.items():
            state[name].copy_(leaf.detach())


def companions_of(server: Tree, points: Tensor, noise: Tensor) -> Tree:
    """Features and classes of companions, ``[samples, ...]``, given what the server has sent.

    Args:
        server: The generator, and the shares of the classes.
        points: Where the classes are in the row of all shares, in [0, 1), ``[samples]``.
        noise: ``[samples, noise]``.
    """
    ends = server[SHARES].double().cumsum(0)
    passed = (points[:, None] * ends[-1] >= ends).sum(1)
    classes = passed.clamp(max=len(ends) - 1)  # before the first shares all ends are 0
    return {FEATURES: generated(server, noise, classes), CLASSES: classes}


def generated(server: Tree, noise: Tensor, classes: Tensor) -> Tensor:
    """Features that the generator makes of some classes, ``[samples, features]``, and of noise for each."""
    labels = F.one_hot(classes, server[f"{GENERATOR}.fc1.weight"].shape[1] - noise.shape[1])
    hidden = linear(server, f"{GENERATOR}.fc1", torch.cat([noise, labels.to(noise)], dim=1))
    scale, shift = (server[f"{GENERATOR}.norm.{kind}"] for kind in ("weight", "bias"))
    return linear(server, f"{GENERATOR}.fc2", F.layer_norm(hidden, hidden.shape[1:], scale, shift).relu())


def linear(tensors: Tree, path: str, inputs: Tensor) -> Tensor:
    """The outputs of a linear layer, which may have no bias."""
    return F.linear(inputs, tensors[f"{path}.weight"], tensors.get(f"{path}.bias"))


class VisibleLinear(ExtendedLinear):
    """A linear layer whose tensors ``Phase.feature_loss`` sees, as it does not for a stack of plain layers."""
