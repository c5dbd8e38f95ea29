"""Networks of a user's own that cannot be trained, each for another reason."""

from math import prod

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


class NoModule:
    """No torch module at all."""


class Broken(Net):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        raise RuntimeError("no luck\ntoday")


def annotated(num_classes: int, hidden: int = 4) -> nn.Module:
    return Net((1, 8, 8), num_classes, hidden)


def unannotated(num_classes: int, hidden: int = 4):
    return annotated(num_classes, hidden)
