"""What is measured, and the clients that hold its samples; ours and the plain loop take all numbers from here."""

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.device import CPU
from pfl_lightning import models, tasks
from pfl_lightning.client import Samples
from pfl_lightning.client.examples import Transform
from pfl_lightning.data import FederatedDataModule, Round
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import ImageTransform, Tokens
from pfl_lightning.models import HuggingFaceModel, InputKind, LeNet5, LoRA, Network, NetworkFactory
from pfl_lightning.models.hugging_face import loading
from pfl_lightning.models.recurrent import Recurrent
from pfl_lightning.system import Asynchronous, Participation
from pfl_lightning.tasks import NO_TARGET, Classification, MultiLabel, NextToken, Regression, Segmentation, Task


class FusedGRU(nn.Module):
    """``CharGRU`` as it is usually written: torch's own layer on one-hot characters.

    Args:
        network: The ``CharGRU`` whose weights it starts with.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        start = network.state_dict()
        width = start["gru.weight_hh_l0"].shape[1]
        layer = network.get_submodule("gru")
        assert isinstance(layer, Recurrent), "it is CharGRU's"
        self.every_step = layer.every_step
        self.alphabet = start["gru.weight_ih_l0"].shape[1]
        self.gru = nn.GRU(self.alphabet, width, batch_first=True)
        self.fc = nn.Linear(width, len(start["fc.bias"]))
        self.load_state_dict(start)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character, ``[batch, alphabet]``, or ``[batch, length, alphabet]`` for one at each step.

        Args:
            tokens: ``[batch, length]``.
        """
        rows = F.one_hot(tokens, self.alphabet).to(self.fc.weight.dtype)
        states = self.gru(rows)[0]
        scores: Tensor = self.fc(states if self.every_step else states[:, -1])
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


def random_bert(
    input_shape: tuple[int, ...], num_classes: int, depth: int = 6, width: int = 384, heads: int = 12
) -> nn.Module:
    """Hugging Face's BERT in the size of MiniLM, with random weights and a small vocabulary."""
    from transformers import BertConfig, BertForSequenceClassification

    length, vocabulary = input_shape
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "max_position_embeddings": length}
    types = {"type_vocab_size": 1}  # so that no tokenizer is needed
    config = BertConfig(vocab_size=vocabulary, num_hidden_layers=depth, num_attention_heads=heads, **sizes, **types)
    with TemporaryDirectory() as folder, loading(folder, "network"):
        BertForSequenceClassification(config).save_pretrained(folder)
        network: nn.Module = HuggingFaceModel(input_shape, num_classes, folder, dropout=False)
    return network


def with_peft(network: Network) -> nn.Module:
    """The same classifier with peft's adapters in the place of ours, which have a B of 0 and the usual alpha."""
    import peft

    module = network.module_with({})
    layers: dict[str, Any] = {path: layer for path, layer in module.named_modules() if hasattr(layer, "lora_hook")}
    factors = {path: layer.lora_A.detach().clone() for path, layer in layers.items()}
    rank = len(next(iter(factors.values())))
    usual = LoRA()
    sizes = {"r": rank, "lora_alpha": usual.alpha}
    config = peft.LoraConfig(**sizes, target_modules=[*factors], modules_to_save=["classifier"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft of today beside transformers of today
        adapted: nn.Module = peft.get_peft_model(usual.merge(module), config)
    for path, factor in factors.items():
        adapted.get_submodule(f"base_model.model.{path}.lora_A.default").load_state_dict({"weight": factor})
    return adapted


@dataclass(frozen=True)
class Workload:
    """What a turn consists of.

    Attributes:
        method: Name of the method's class, and of its plain loop.
        network: Builds the network.
        input_shape: Shape of an image, or length and alphabet of a text.
        cohort: Clients that take part in a round.
        samples: Samples of each client; a tuple has one number for each client of the cohort.
        options: Options of the method.
        clients: Clients in all; the cohort by default.
        in_flight: Clients that train at the same time without rounds, where the cohort are those of an update; 0 for
            rounds.
        stages: The rounds of a turn: how many of the fastest of the cohort take part in each, all of them when None.
        classes: Number of classes, labels or numbers that are predicted.
        task: What the targets are.
        module: Makes the plain loop's module from our network with the first weights.
    """

    method: str
    network: NetworkFactory
    input_shape: tuple[int, ...]
    cohort: int
    samples: int | tuple[int, ...]
    options: Mapping[str, Any]
    clients: int | None = None
    in_flight: int = 0
    stages: tuple[int | None, ...] = (None,)
    classes: int = 10
    task: type[Task] = Classification
    module: Callable[[Network], nn.Module] = deepcopy

    def with_options(self, **options: object) -> "Workload":
        """The same with other options of the method."""
        return replace(self, options={**self.options, **options})

    def counts(self) -> NDArray[np.int64]:
        """Samples of each client, ``[clients]``; of a larger population those of the cohort come over and over."""
        return np.resize(np.array(self.samples), self.clients or self.cohort)

    @property
    def input_kind(self) -> InputKind:
        """Tokens for texts."""
        return "tokens" if len(self.input_shape) == 2 else "numbers"


def workload_of(settings: Mapping[str, Any]) -> Workload:
    """The workload that some settings describe: names of classes, lists, and the method's options among the rest."""
    names = {field.name for field in fields(Workload)}
    attributes: dict[str, Any] = {}
    for name, value in settings.items():
        attributes[name] = tuple(value) if isinstance(value, list) else value
    network_options = attributes.pop("network_options", None)
    options = {name: value for name, value in attributes.items() if name not in names and value is not None}
    if "adapter" in options:
        options["adapter"] = LoRA(**options["adapter"])
    attributes = {name: value for name, value in attributes.items() if name in names}
    attributes["network"] = network_of(attributes["network"], network_options or {})
    if attributes["samples"] == "ragged":
        attributes["samples"] = ragged_counts(attributes["cohort"])
    if "task" in attributes:
        attributes["task"] = getattr(tasks, attributes["task"])
    if "module" in attributes:
        attributes["module"] = globals()[attributes["module"]]
    return Workload(**attributes, options=options)


def network_of(name: str, options: Mapping[str, Any]) -> NetworkFactory:
    """A network by name, with its options; among them can be ``networks``, lists of a name and options."""
    network: NetworkFactory = globals().get(name) or getattr(models, name)
    if "networks" in options:
        options = {**options, "networks": [network_of(*each) for each in options["networks"]]}
    return partial(network, **options) if options else network


def population_of(settings: Mapping[str, Any]) -> dict[int, Workload]:
    """The workloads of a population, by its size."""
    varies = settings["varies"]
    fixed = {name: value for name, value in settings.items() if name not in ("varies", "sizes")}
    return {size: workload_of({**fixed, varies: size}) for size in settings["sizes"]}


def ragged_counts(clients: int) -> tuple[int, ...]:
    """Log-normal numbers of samples between 20 and 600, with median 100."""
    draws = np.random.default_rng(0).lognormal(np.log(100), 0.9, clients)
    return tuple(draws.clip(20, 600).astype(int).tolist())


SETTINGS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
WORKLOADS = {name: workload_of(settings) for name, settings in SETTINGS["workloads"].items()}
POPULATIONS = {name: population_of(settings) for name, settings in SETTINGS["populations"].items()}


class RandomClients(FederatedDataModule):
    """Random uint8 images or texts with targets of the task, as many as a cohort holds.

    Populations of all sizes share one table of samples.

    Args:
        workload: What is measured.
        device: Where it is measured.
    """

    def __init__(self, workload: Workload, device: torch.device = CPU) -> None:
        counts = workload.counts()
        cohort = workload.cohort
        in_flight = workload.in_flight
        participation = Asynchronous(in_flight, buffer=cohort) if in_flight else Participation(cohort)
        super().__init__(num_clients=len(counts), participation=participation, val_fraction=0.0)
        self.workload = workload
        self.num_classes = workload.classes
        self.input_shape = workload.input_shape
        self.input_kind = workload.input_kind
        self.device = device
        # samples are dealt out in order, over and over until every client has its own
        samples = self.load()[0]
        dealt = np.resize(np.arange(len(samples.targets)), counts.sum())
        drawn = Samples(samples.inputs, samples.targets, self.transform())
        self.tables = {"train": ClientTable(drawn, np.split(dealt, counts.cumsum()[:-1]))}

    def make_round(self, index: int) -> Round:
        """A round, with its examples on the device, as Lightning moves them there."""
        return super().make_round(index).to(self.device)

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Samples of a cohort to train on, and none to test on."""
        source = torch.Generator().manual_seed(0)
        count = int(self.workload.counts()[: self.workload.cohort].sum())
        high = 256
        shape = self.workload.input_shape
        if self.input_kind == "tokens":
            high = shape[1]
            shape = shape[:1]
        inputs = torch.randint(high, (count, *shape), dtype=torch.uint8, generator=source)
        targets = random_targets(self.workload, count, source)
        return LabelledData(inputs, targets), LabelledData(inputs[:0], targets[:0])

    def transform(self) -> Transform:
        """Images to the range -1 .. 1."""
        if self.input_kind == "tokens":
            return Tokens()
        channels = self.workload.input_shape[0]
        return ImageTransform([0.5] * channels, [0.5] * channels)


def random_targets(workload: Workload, count: int, source: torch.Generator) -> Tensor:
    """Targets of so many samples, ``[count, ...]``."""
    classes = workload.classes
    if workload.task is MultiLabel:
        return torch.randint(-1, 2, (count, classes), dtype=torch.int8, generator=source)  # a third is unknown
    if workload.task is Regression:
        return torch.randn(count, classes, generator=source)
    if workload.task is Segmentation:
        return torch.randint(classes, (count, *workload.input_shape[1:]), dtype=torch.uint8, generator=source)
    if workload.task is NextToken:
        targets = torch.randint(classes, (count, workload.input_shape[0]), dtype=torch.int16, generator=source)
        return targets.masked_fill(torch.rand(targets.shape, generator=source) < 0.1, NO_TARGET)
    return torch.randint(classes, (count,), generator=source)
