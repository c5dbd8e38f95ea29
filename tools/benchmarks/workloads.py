"""What is measured, and the clients that hold its samples; ours and the plain loop take all numbers from here."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.device import CPU
from pfl_lightning.client import Samples
from pfl_lightning.client.examples import Transform
from pfl_lightning.data import FederatedDataModule, Round
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import ImageTransform, Tokens
from pfl_lightning.models import (
    MLP,
    CharGRU,
    ConvNet,
    InputKind,
    LeNet5,
    LogisticRegression,
    LoRA,
    Network,
    NetworkFactory,
    ResNet18,
    ViT,
)
from pfl_lightning.system import Asynchronous, Participation


class FusedGRU(nn.Module):
    """``CharGRU`` as it is usually written: torch's own layer on one-hot characters.

    Args:
        network: The ``CharGRU`` whose weights it starts with.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        start = network.state_dict()
        width, self.alphabet = start["gru.weight_hh_l0"].shape[1], start["gru.weight_ih_l0"].shape[1]
        self.gru = nn.GRU(self.alphabet, width, batch_first=True)
        self.fc = nn.Linear(width, len(start["fc.bias"]))
        self.load_state_dict(start)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character, ``[batch, alphabet]``, given ``[batch, length]``."""
        rows = F.one_hot(tokens, self.alphabet).to(self.fc.weight.dtype)
        scores: Tensor = self.fc(self.gru(rows)[0][:, -1])
        return scores


class Split(nn.Module):
    """``LeNet5`` as a module that is none of ours: what it ends with are layers of their own."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = LeNet5(input_shape, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scores ``[batch, classes]`` of images ``[batch, channels, height, width]``."""
        scores: Tensor = self.layers(images)
        return scores


class Opaque(Split):
    """The same with something after the head, so that it is a single layer."""

    def forward(self, images: Tensor) -> Tensor:
        """The same scores, as another tensor."""
        return super().forward(images) * 1.0


@dataclass(frozen=True)
class Workload:
    """What a turn consists of.

    Attributes:
        network: Builds the network.
        input_shape: Shape of an image, or length and alphabet of a text.
        cohort: Clients that take part in a round.
        samples: Samples of each client; a tuple has one number for each client of the cohort.
        adapter: Adapters in the network, of which all else but the head is frozen.
        epochs: Epochs of everything.
        head_epochs: FedRep's epochs on the head before its epoch on the body; 0 for epochs of everything.
        proximity: Strength of the pull to the received model, in FedProx, HeurFedAMP or of Ditto's personal models; in
            pFedMe that to the client's copy of it.
        correlation: Weight of the correlation with the client's copy of the received model, in FedMac.
        follows: Share of the way to the client's model that this copy goes after each step; 0 for no copy.
        personal: Whether clients train a second model, as in Ditto.
        attentive: Whether each client receives a mix of its own of all clients' models, as in HeurFedAMP.
        gossip: Whether clients mix with two neighbours on a ring, without a server: D-PSGD, or DePRL with head epochs.
        conformity: Share of the samples whose clients, those with the largest losses, train in Delta-FL; 1 for FedAvg.
        loop: Name of the plain loop of another method, of ``loops.LOOPS``.
        clients: Clients in all; the cohort by default.
        in_flight: Clients that train at the same time without rounds, where the cohort are those of an update; 0 for
            rounds.
        stages: The rounds of a turn: how many of the fastest of the cohort take part in each, all of them when None.
        classes: Number of classes.
        module: Makes the plain loop's module from our network with the first weights.
    """

    network: NetworkFactory
    input_shape: tuple[int, ...]
    cohort: int
    samples: int | tuple[int, ...]
    adapter: LoRA | None = None
    epochs: int = 1
    head_epochs: int = 0
    proximity: float = 0.0
    correlation: float = 0.0
    follows: float = 0.0
    personal: bool = False
    attentive: bool = False
    gossip: bool = False
    conformity: float = 1.0
    loop: str = ""
    clients: int | None = None
    in_flight: int = 0
    stages: tuple[int | None, ...] = (None,)
    classes: int = 10
    batch_size: int = 10
    lr: float = 0.1
    momentum: float = 0.5
    module: Callable[[Network], nn.Module] = deepcopy

    def counts(self) -> NDArray[np.int64]:
        """Samples of each client, ``[clients]``; of a larger population those of the cohort come over and over."""
        return np.resize(np.array(self.samples), self.clients or self.cohort)

    @property
    def input_kind(self) -> InputKind:
        """Tokens for texts."""
        return "tokens" if len(self.input_shape) == 2 else "numbers"


def ragged_counts(clients: int) -> tuple[int, ...]:
    """Log-normal numbers of samples between 20 and 600, with median 100."""
    draws = np.random.default_rng(0).lognormal(np.log(100), 0.9, clients)
    return tuple(draws.clip(20, 600).astype(int).tolist())


MNIST_LIKE, CIFAR_LIKE, TEXT_LIKE = (1, 28, 28), (3, 32, 32), (20, 80)
DNN = partial(MLP, hidden=(100,))
PFLLIB_CNN = partial(ConvNet, hidden=(512,))
SMALL_IMAGES = (1, 16, 16)
SMALL_VIT = partial(ViT, depth=6, width=192, heads=3)
ADAPTED = Workload(SMALL_VIT, SMALL_IMAGES, cohort=20, samples=50, adapter=LoRA(rank=4), lr=1e-3, loop="AdamW")
LAST_THIRD = replace(ADAPTED, adapter=LoRA(rank=4, targets="block[56].*"))
WORKLOADS = {
    "fedavg-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150),
    "fedrep-mlp": Workload(MLP, MNIST_LIKE, cohort=20, samples=150, head_epochs=10),
    "srpfl-mlp": Workload(MLP, MNIST_LIKE, cohort=20, samples=150, head_epochs=10, stages=(5, 10, 20)),
    "ragged-mlp": Workload(DNN, MNIST_LIKE, cohort=100, samples=ragged_counts(100)),
    "fedavg-dnn": Workload(DNN, MNIST_LIKE, cohort=100, samples=150),
    "fedavg-logistic": Workload(LogisticRegression, MNIST_LIKE, cohort=100, samples=150),
    "fedprox-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, proximity=0.1),
    "ditto-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, proximity=0.1, personal=True),
    "heurfedamp-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, proximity=0.1, attentive=True),
    "pfedme-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, proximity=1.0, follows=0.075),
    "fedmac-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, correlation=0.005, follows=0.075),
    "dpsgd-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, gossip=True),
    "deprl-mlp": Workload(MLP, MNIST_LIKE, cohort=20, samples=150, head_epochs=10, gossip=True),
    "deltafl-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, conformity=0.5),
    "adamw-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, loop="AdamW", lr=1e-3),
    "apfl-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, loop="APFL", momentum=0.0),
    "fedproto-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, loop="FedProto", momentum=0.0),
    "scaffold-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, loop="SCAFFOLD", momentum=0.0),
    "fedbuff-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150, clients=200, in_flight=100),
    "fedavg-lenet": Workload(LeNet5, CIFAR_LIKE, cohort=8, samples=30),
    "fedavg-lenet-100": Workload(LeNet5, CIFAR_LIKE, cohort=100, samples=30),
    "fedavg-cnn": Workload(PFLLIB_CNN, MNIST_LIKE, cohort=20, samples=100, momentum=0.0, lr=0.005),
    "fedprox-lenet": Workload(LeNet5, CIFAR_LIKE, cohort=8, samples=30, proximity=0.1),
    "moon-lenet": Workload(LeNet5, CIFAR_LIKE, cohort=8, samples=30, loop="MOON", momentum=0.0),
    "deltafl-lenet": Workload(LeNet5, CIFAR_LIKE, cohort=8, samples=30, conformity=0.5),
    "fedrep-lenet": Workload(LeNet5, CIFAR_LIKE, cohort=8, samples=30, head_epochs=10),
    "fedrep-lenet-split": Workload(Split, CIFAR_LIKE, cohort=8, samples=30, head_epochs=10),
    "fedrep-lenet-opaque": Workload(Opaque, CIFAR_LIKE, cohort=8, samples=30, head_epochs=10),
    "fedavg-resnet18": Workload(ResNet18, CIFAR_LIKE, cohort=4, samples=32, batch_size=16),
    "fedavg-gru": Workload(CharGRU, TEXT_LIKE, cohort=20, samples=30, classes=80, module=FusedGRU),
    "lora-tiny-vit": replace(ADAPTED, network=partial(ViT, depth=2, width=64, heads=4)),
    "lora-small-vit": ADAPTED,
    "lora-last-third": replace(LAST_THIRD, epochs=5),
    "lora-fedrep": replace(LAST_THIRD, head_epochs=10),
    "data-loading": Workload(MLP, MNIST_LIKE, cohort=100, samples=150),
    "evaluation": Workload(MLP, MNIST_LIKE, cohort=100, samples=50, head_epochs=10),
}

FEDREP_100 = Workload(MLP, MNIST_LIKE, cohort=100, samples=10, head_epochs=10)
PERSONAL_ADAPTERS = replace(ADAPTED, loop="", lr=0.01, proximity=0.1, personal=True)  # Ditto's
GOSSIP = Workload(ResNet18, CIFAR_LIKE, cohort=16, samples=16, batch_size=16, lr=0.01, gossip=True)
POPULATIONS = {
    "population": {size: replace(FEDREP_100, clients=size) for size in (100, 1_000, 10_000, 100_000)},
    "gossip-population": {size: replace(GOSSIP, cohort=size) for size in (16, 32, 64, 128)},
    "lora-population": {size: replace(PERSONAL_ADAPTERS, clients=size) for size in (20, 1_000)},
}


class RandomClients(FederatedDataModule):
    """Random uint8 images or texts, as many as a cohort holds: populations of all sizes share one table of samples.

    Args:
        workload: What is measured.
        device: Where it is measured.
    """

    def __init__(self, workload: Workload, device: torch.device = CPU) -> None:
        counts = workload.counts()
        cohort, in_flight = workload.cohort, workload.in_flight
        participation = Asynchronous(in_flight, buffer=cohort) if in_flight else Participation(cohort)
        super().__init__(num_clients=len(counts), participation=participation, val_fraction=0.0)
        self.workload, self.num_classes, self.input_shape = workload, workload.classes, workload.input_shape
        self.device = device
        self.input_kind = workload.input_kind
        # samples are dealt out in order, over and over until every client has its own
        dealt = np.resize(np.arange(self.held), counts.sum())
        drawn = self.load()[0]
        samples = Samples(drawn.inputs, drawn.targets, self.transform())
        self.tables = {"train": ClientTable(samples, np.split(dealt, counts.cumsum()[:-1]))}

    def make_round(self, index: int) -> Round:
        """A round, with its examples on the device, as Lightning moves them there."""
        return super().make_round(index).to(self.device)

    @property
    def texts(self) -> bool:
        """Whether the inputs are texts."""
        return self.input_kind == "tokens"

    @property
    def held(self) -> int:
        """Samples of a whole cohort."""
        return int(self.workload.counts()[: self.workload.cohort].sum())

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Samples to train on, and none to test on."""
        source, shape = torch.Generator().manual_seed(0), self.workload.input_shape
        high, shape = (shape[1], shape[:1]) if self.texts else (256, shape)
        inputs = torch.randint(high, (self.held, *shape), dtype=torch.uint8, generator=source)
        targets = torch.randint(self.num_classes, (self.held,), generator=source)
        return LabelledData(inputs, targets), LabelledData(inputs[:0], targets[:0])

    def transform(self) -> Transform:
        """Images to the range -1 .. 1."""
        if self.texts:
            return Tokens()
        channels = self.workload.input_shape[0]
        return ImageTransform([0.5] * channels, [0.5] * channels)
