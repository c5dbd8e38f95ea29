"""Networks of one's own: any class of torch modules, and any function that is annotated to return one."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import mobilenet_v3_small

from pfl_lightning.methods import FedAvg


class Net(nn.Module):
    """A small convolutional network; what is not a Sequential needs no more than this."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: int = 32) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv = nn.Conv2d(channels, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * (height // 2) * (width // 2), hidden)
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[batch, channels, height, width]`` to ``[batch, num_classes]``."""
        found = F.max_pool2d(F.relu(self.conv(images)), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(found, 1))))


def colour_net(num_classes: int, dropout: float = 0.2) -> nn.Module:
    """Torchvision's small MobileNet on grey images of 8 x 8 pixels."""
    network = mobilenet_v3_small(num_classes=num_classes, dropout=dropout)
    return nn.Sequential(nn.Upsample(size=32), nn.Conv2d(1, 3, 1), network)


class HeadOnly(FedAvg):
    """FedAvg that leaves the body as it is."""

    trains = "head"
