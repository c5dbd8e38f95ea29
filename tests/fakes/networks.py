"""Modules as users write them."""

from math import prod

import torch
from torch import nn
from torch.nn import functional as F


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


class Tied(nn.Module):
    """Two linear layers that are one."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

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
