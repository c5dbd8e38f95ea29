"""Networks of a user's own that cannot be trained, each for another reason."""

from math import prod

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """One that can."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: int = 4) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(prod(input_shape), hidden), nn.Linear(hidden, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs.flatten(1)))


class Mapped(Net):
    def forward(self, inputs):
        return {"logits": super().forward(inputs), "features": inputs}


class Paired(Net):
    def forward(self, inputs):
        return super().forward(inputs), inputs


class Wide(Net):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes + 1)


class Tied(Net):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.again = self.body


class Frozen(Net):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.body.requires_grad_(False)


class Empty(nn.Module):
    """Nothing to train."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def forward(self, inputs):
        return inputs.flatten(1)[:, : self.num_classes]


class Lazy(nn.Module):
    """Its lazy layer takes another shape than the inputs have."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv, self.head = nn.LazyConv2d(2, 9), nn.LazyLinear(num_classes)

    def forward(self, inputs):
        return self.head(self.conv(inputs).flatten(1))


class Coloured(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 2, 3), nn.Linear(72, num_classes)

    def forward(self, inputs):
        return self.head(self.conv(inputs).flatten(1))


class InPlace(Net):
    def forward(self, inputs):
        return super().forward(inputs.sub_(0.5))


class NoModule:
    """No torch module at all."""


class Broken(Net):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        raise RuntimeError("no luck\ntoday")


def annotated(num_classes: int, hidden: int = 4) -> nn.Module:
    return Net((1, 8, 8), num_classes, hidden)


def unannotated(num_classes: int, hidden: int = 4):
    return annotated(num_classes, hidden)


def of_a_number(num_classes: int) -> nn.Module:
    return torch.zeros(num_classes)  # type: ignore[return-value]
