"""Modules as users write them."""

from math import prod

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from pfl_lightning.models import MLP, Network
from pfl_lightning.models.factory import pool_features


def pooled(input_shape, num_classes, **options):
    """An MLP whose head sees 4 means of neighbouring features, which overlap if 4 does not divide their number."""
    network = MLP(input_shape, num_classes, **options)
    pool_features(network, 4)
    return network


class Plain(nn.Module):
    """Its last layer is the end of it."""

    def __init__(self, input_shape, num_classes, hidden: int = 6):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(prod(input_shape), hidden), nn.Linear(hidden, num_classes)

    def forward(self, inputs):
        return self.fc2(F.relu(self.fc1(inputs.flatten(1))))


class Opaque(Plain):
    """Something follows its last layer."""

    def forward(self, inputs):
        return super().forward(inputs) * 1.0


class Nested(nn.Module):
    """Ends with a Sequential, has a parameter of its own and one that nothing uses, and layers that work in place."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.ones(())), nn.Linear(2, 2)
        self.features = nn.Sequential(nn.Linear(prod(input_shape), 5), nn.ReLU(inplace=True))
        self.classifier = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, num_classes))

    def forward(self, inputs):
        return self.classifier(self.features(inputs.flatten(1)) * self.scale)


class Normed(nn.Module):
    """With BatchNorm and functional dropout."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.fc1, self.norm = nn.Linear(prod(input_shape), 5), nn.BatchNorm1d(5)
        self.fc2 = nn.Linear(5, num_classes)

    def forward(self, inputs):
        return self.fc2(F.dropout(self.norm(self.fc1(inputs.flatten(1))), 0.5, self.training))


class Noisy(Plain):
    """Does in training alone what the value of noise says."""

    def __init__(self, input_shape, num_classes, noise: float = 0.0):
        super().__init__(input_shape, num_classes)
        self.noise = noise

    def forward(self, inputs):
        if self.training:
            inputs = inputs + self.noise
        return super().forward(inputs)


class Branching(nn.Module):
    """Asks what its inputs are, which ``vmap`` cannot."""

    def __init__(self, input_shape):
        super().__init__()
        self.fc1 = nn.Linear(prod(input_shape), 6)

    def forward(self, inputs):
        hidden = F.relu(self.fc1(inputs.flatten(1)))
        return hidden if float(hidden.detach().sum()) < 1e9 else 0 * hidden


def branching(input_shape, num_classes) -> nn.Module:
    """Such a body below a head."""
    return nn.Sequential(Branching(input_shape), nn.Linear(6, num_classes))


class Evaluating(Plain):
    """Keeps its dropout out of training."""

    def __init__(self, input_shape, num_classes, probability: float = 0.5):
        super().__init__(input_shape, num_classes)
        self.dropout = nn.Dropout(probability)

    def forward(self, inputs):
        return self.fc2(self.dropout(F.relu(self.fc1(inputs.flatten(1)))))

    def train(self, mode=True):
        super().train(mode)
        self.dropout.eval()
        return self


class Masked(nn.Module):
    """Attention with a causal mask and places as buffers, in the types that users write them in."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        length, width = input_shape[1:]
        self.register_buffer("scales", torch.ones(length, dtype=torch.float64))
        self.register_buffer("mask", torch.full((length, length), -torch.inf).triu(1))
        self.register_buffer("places", torch.arange(300, 300 + length))
        self.proj, self.table = nn.Linear(width, 6), nn.Embedding(300 + length, 6)
        self.attention = nn.MultiheadAttention(6, 1, batch_first=True)
        self.head = nn.Linear(6, num_classes)

    def forward(self, inputs):
        hidden = self.proj(inputs.squeeze(1)) * self.scales[:, None].to(inputs.dtype) + self.table(self.places)
        return self.head(self.attention(hidden, hidden, hidden, attn_mask=self.mask, need_weights=False)[0].mean(1))


def perceptron(first, head) -> nn.Module:
    """Two linear layers; the first one has 6 outputs."""
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), head)


def spectral(input_shape, num_classes) -> nn.Module:
    """With vectors that every forward pass in training moves, beside BatchNorm's statistics."""
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(prod(input_shape), 6))
    return perceptron(first, nn.Linear(6, num_classes))


def hooked(input_shape, num_classes) -> nn.Module:
    """Linear layers, one of which has a hook."""
    first = nn.Linear(prod(input_shape), 6)
    first.register_forward_hook(lambda layer, inputs, output: 2 * output)
    return perceptron(first, nn.Linear(6, num_classes))


def pruned(input_shape, num_classes) -> nn.Module:
    """Linear layers, one of which torch has pruned."""
    first = prune.l1_unstructured(nn.Linear(prod(input_shape), 6), "weight", 0.5)
    return perceptron(first, nn.Linear(6, num_classes))


def normalised_weights(input_shape, num_classes) -> nn.Module:
    """The head is a layer whose weight torch makes of others."""
    head = nn.utils.parametrizations.weight_norm(nn.Linear(6, num_classes))
    return perceptron(nn.Linear(prod(input_shape), 6), head)


def twice_the_same(input_shape, num_classes, apart: bool = False) -> Network:
    """A network of ours that uses one layer twice."""
    act, again = nn.Tanh(), nn.Tanh()
    layers = {"flat": nn.Flatten(), "fc1": nn.Linear(prod(input_shape), 6), "act1": act, "fc2": nn.Linear(6, 6)}
    return Network({**layers, "act2": again if apart else act, "fc3": nn.Linear(6, num_classes)})


def without_statistics(input_shape, num_classes) -> nn.Module:
    """BatchNorm that normalises with the mini-batch in evaluation too."""
    first = nn.Conv2d(input_shape[0], 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()
    return nn.Sequential(*first, nn.LazyLinear(num_classes))


class Tied(nn.Module):
    """Two linear layers with one weight, or ``apart`` with a copy of it each."""

    def __init__(self, width, apart: bool = False):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = nn.Parameter(self.first.weight.detach().clone()) if apart else self.first.weight

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))


def frozen_and_tied(input_shape, num_classes) -> nn.Module:
    """The first linear layer is frozen, the next two are tied."""
    frozen = nn.Linear(prod(input_shape), 6).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), frozen, nn.ReLU(), Tied(6), nn.Linear(6, num_classes))


def residual_in_place(input_shape, num_classes) -> nn.Module:
    """A block that adds to what a layer returned; to read its layers as a chain would lose the addition."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.relu = nn.Linear(input_shape[0], input_shape[0]), nn.ReLU()

        def forward(self, inputs):
            found = self.fc(inputs)
            found += inputs
            return self.relu(found)

    return nn.Sequential(Block(), Block(), nn.Linear(input_shape[0], num_classes))
