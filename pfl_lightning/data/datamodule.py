from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pfl_lightning import processes
from pfl_lightning.bounds import (
    Clients,
    ClosedUnitInterval,
    NewClients,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveInt,
    Seed,
    Share,
)
from pfl_lightning.client import Examples, Samples, largest_first
from pfl_lightning.client.examples import Transform
from pfl_lightning.data.cache import discard_if_refused
from pfl_lightning.data.clients import ClientTable, fingerprint_of, hash_of
from pfl_lightning.data.holdout import HeldOut, Split, check_test_samples, limit_samples
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.partitions.partition import Indices, Labels, Partition, Parts, Population
from pfl_lightning.data.partitions.shards import ClassShards
from pfl_lightning.data.poison import Poison, poisoned
from pfl_lightning.data.rounds import Arrivals, EvalBatch, EvalLoader, Round, RoundLoader
from pfl_lightning.data.skews import Skew, skewed
from pfl_lightning.data.transforms import ImageTransform
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.models import InputKind
from pfl_lightning.objects import constructor_arguments
from pfl_lightning.paths import expand_home
from pfl_lightning.seeding import numpy_generator
from pfl_lightning.server import client_weights
from pfl_lightning.system import Asynchronous, Attackers, FixedExponential, Participation, Speeds, Times
from pfl_lightning.tasks import Classification, Task

DEFAULT_CLIENTS = 20
NEW_HEAD_EPOCHS = 10


class NewHead(NamedTuple):
    """How each new client trains a new head.

    Attributes:
        epochs: Epochs.
        steps: Steps of an epoch; None for all samples.
    """

    epochs: int
    steps: int | None = None


class FederatedDataModule(pl.LightningDataModule, ABC):
    """A data set split among clients, with the clients' participation and speeds.

    Args:
        root: Folder with the data set's files (torchvision's ``root``).
        num_clients: Total number of clients, of which each round may sample a part (``participation``). Default: 20, or
            all clients that data of your own has (``OwnData``).
        partition: How samples are split among clients. Default: set by the data set, usually 3 classes per client
            (``ClassShards``), or one of its users per client (``NaturalUsers``).
        skew: How the pictures of clients differ, such as ``Rotation``. Default: not at all.
        poison: What attackers train on in place of their samples, such as ``LabelFlip``. Default: no client does.
        participation: Which clients take part in a round. Default: all.
        speeds: How long each client computes in a round, in simulated seconds. Default: ``FixedExponential``.
        time_per: What the speeds are: seconds of a ``round``, or of each training ``sample`` of a client in a round.
        communication_time: Simulated seconds of communication per round.
        val_fraction: Share of each client's training samples that is held out for model selection; at least one sample
            is left for training. 0 for none. Data of your own can have samples for it, which are used instead.
        test_fraction: Share of each client's samples that becomes its test split, drawn at random. Default: the data
            set's own test split is partitioned like the training samples; if it has none, a quarter.
        test_clients: Share of the clients that never train: all their samples are for testing, and the other clients
            have no test samples (Delta-FL's disjoint devices). 0 for none.
        val_clients: Share of the clients that are not test clients that never train either: all their samples are for
            validation, and ``val_fraction`` is not used (Delta-FL's validation devices). 0 for none.
        choice_fraction: Share of each test client's samples with which it may choose between models: Delta-FL trains
            one for each level of conformity, and a new device picks its own. They are the split ``choice``, which
            selects no checkpoint; the others stay ``test``, at least one. 0 for none.
        max_samples: Most samples of a client in each split, drawn at random, so that rounds stay short. Default: all.
        sample_fraction: The same as a share of the client's samples in each split.
        eval_train: Also evaluate clients on their training samples, by the loss (the split ``train``).
        new_clients: For ``pfl test``: evaluate this many clients that did not take part in training, instead of those
            that did (DePRL, arXiv:2312.10815). With ``NaturalUsers`` they are users that training has left. Otherwise
            they get a new draw of the partition: they train on samples that the run has trained on, and are tested on
            its test samples. 0 to disable.
        new_samples: Most samples that a new client trains on, drawn at random. Default: all.
        new_head_epochs: Epochs for which each new client trains a new head on the learned body, which is frozen
            (``finetuned``). 0 for what the method does with a client that has not taken part yet.
        new_head_steps: Steps on random mini-batches in place of these epochs. Default: none.
        partition_seed: Seed of the split into clients; it does not follow ``seed_everything``.
        seed: Seed of client sampling and batch orders; on the command line it follows ``seed_everything``.

    Raises:
        PflError: If the root is empty.

    Attributes:
        init_args: What it was made with, by name.
        tables: The clients' samples, by split; after ``setup``.
        run_tables: Those of the run's clients, which are others where ``new_clients`` are tested.
        attack_tables: What the run's clients train on once attackers attack, and what a backdoor wants of test samples.
        attackers: Which clients are known to attack, for reports alone, ``[eval_clients]``; empty until it is known.
        evaluation_order: Ids of the clients, largest first, ``[eval_clients]``; after ``setup``.
    """

    num_classes: int  # this and the next three are the class's, or set by load, when it knows
    input_shape: tuple[int, ...]
    input_kind: InputKind = "numbers"
    files_option: ClassVar[str] = "root"  # the option that says where the files are
    client_names: tuple[str, ...] = ()  # of own data, in the order of the clients' numbers; after setup
    own_validation: int = 0  # how many of the last training samples are the data's own split for validation
    overlap: int = 0  # samples of a user this far apart share no content; 0: none do (see hold_out)
    reads_samples: ClassVar[bool] = True  # whether samples are there, and not drawn by the settings
    usual_partition: ClassVar[type[Partition]] = ClassShards

    def __init__(
        self,
        root: str = "data",
        num_clients: Clients | None = None,
        partition: Partition | None = None,
        skew: Skew | None = None,
        poison: Poison | None = None,
        participation: Participation | None = None,
        speeds: Speeds | None = None,
        time_per: Literal["round", "sample"] = "round",
        communication_time: NonNegativeFloat = 0.0,
        val_fraction: ClosedUnitInterval = 0.1,
        test_fraction: OpenUnitInterval | None = None,
        test_clients: ClosedUnitInterval = 0.0,
        val_clients: ClosedUnitInterval = 0.0,
        choice_fraction: ClosedUnitInterval = 0.0,
        max_samples: PositiveInt | None = None,
        sample_fraction: Share = 1.0,
        eval_train: bool = False,
        new_clients: NewClients = 0,
        new_samples: PositiveInt | None = None,
        new_head_epochs: NonNegativeInt = NEW_HEAD_EPOCHS,
        new_head_steps: PositiveInt | None = None,
        partition_seed: Seed = 0,
        seed: Seed = 1,
    ) -> None:
        super().__init__()
        kinds = {Partition: partition, Skew: skew, Poison: poison, Participation: participation, Speeds: speeds}
        for kind, part in kinds.items():
            if not isinstance(part, kind | None):
                raise PflError(f"data.{kind.__name__.lower()} must be an object of {kind.__name__}, got {part}")
        if new_head_steps is not None and new_head_epochs != NEW_HEAD_EPOCHS:
            raise PflError(
                f"data.new_head_steps: {new_head_steps} is not possible with data.new_head_epochs {new_head_epochs}; "
                "allowed: one of the two"
            )
        self.init_args = constructor_arguments(FederatedDataModule)
        self.root = str(expand_home(root, "data.root"))
        self.num_clients = num_clients or DEFAULT_CLIENTS
        self.partition = partition or self.usual_partition()
        self.skew = skew
        self.poison = poison
        self.participation = participation or Participation()  # it has state, so it must not be shared
        self.speeds = speeds or FixedExponential()
        self.time_per = time_per
        self.communication_time = communication_time
        self.held_out = HeldOut(val_fraction, test_fraction, val_clients, test_clients, choice_fraction)
        self.max_samples = max_samples
        self.sample_fraction = sample_fraction
        self.eval_train = eval_train
        self.seed = seed
        self.new_clients = new_clients
        self.new_samples = new_samples
        self.new_head_epochs = new_head_epochs
        self.new_head_steps = new_head_steps
        self.partition_seed = partition_seed
        self.tables: dict[Split, ClientTable] = {}
        self.run_tables: dict[Split, ClientTable] = {}
        self.attack_tables: dict[Split, ClientTable] = {}
        self.attackers = torch.zeros(0, dtype=torch.bool)

    @property
    def new_head(self) -> NewHead | None:
        """How new clients train a new head, if they do."""
        if not (self.new_clients and self.new_head_epochs):
            return None
        return NewHead(self.new_head_epochs) if self.new_head_steps is None else NewHead(self.new_head_steps, 1)

    @abstractmethod
    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read the training and the test split, or all samples and None if there is no split.

        Raises:
            PflError: If the files are missing or cannot be read.
        """

    @abstractmethod
    def transform(self) -> Transform:
        """Make the function that turns raw inputs into network inputs; called after ``load``."""

    def pretrained(self) -> Mapping[str, Tensor]:
        """Pretrained tensors for the network, by name, such as ``embedding.weight``, after ``load``."""
        return {}

    @property
    def task(self) -> Task:
        """What the targets are; after ``load``. By default they are classes, ``num_classes`` of them."""
        return Classification().sized(self.num_classes)

    def guesses(self) -> Mapping[str, Tensor]:
        """Outputs without training to compare models with, by name, ``[samples, outputs]``; after ``setup``."""
        return {}

    @property
    def understood(self) -> str:
        """What data of the user's own were taken for, a line each; after ``setup``. Empty for a known data set."""
        return ""

    @property
    def training_clients(self) -> int:
        """Number of clients that can train; they have the lowest ids, then come validation and test clients."""
        return len(self.held_out.roles(self.eval_clients).training)

    @property
    def training_counts(self) -> Indices:
        """Number of training samples per client, ``[training_clients]``; after ``setup``."""
        return self.tables["train"].counts[: self.training_clients].numpy()

    @property
    def eval_clients(self) -> int:
        """Number of clients that are evaluated: all, or all new ones."""
        return int(self.new_clients or self.num_clients)

    def setup(self, stage: str | None = None) -> None:
        """Get the data, load them and split them among the clients, once.

        Raises:
            PflError: If the files cannot be read, or the options are not possible together.
        """
        if self.new_clients and stage not in (None, "test"):
            raise PflError("data.new_clients must be 0 to train: new clients are for pfl test with a checkpoint")
        if self.new_clients and (self.held_out.val_clients or self.held_out.test_clients):
            raise PflError(f"data.new_clients must be 0 with data.{self.held_out.clients_option}")
        if self.new_samples is not None and not self.new_clients:
            raise PflError(f"data.new_samples must be null without data.new_clients, got {self.new_samples}")
        if self.tables:
            return
        self.prepare_data()
        train, test = self.load_checked()  # first, since it may set the number of clients
        self.held_out.check(self.eval_clients)
        if not self.new_clients:
            self.participation.check(self.training_clients)
        samples = train.join(test)
        run, parts = self.assign(samples, None if test is None else len(train.targets))
        if not self.held_out.test_clients:
            check_test_samples(parts["test"][: self.training_clients])
        self.run_tables = self._tables(samples, run, "skew")
        if self.poison is not None:
            self.attack_tables = self._poisoned(run, self.poison)
        self.tables = self._tables(samples, parts, "new skew") if self.new_clients else self.run_tables
        self.evaluation_order = largest_first(self.tables["train"].counts)

    def _tables(self, samples: LabelledData, parts: dict[Split, Parts], stream: str) -> dict[Split, ClientTable]:
        """The samples of each client in each split, as the client sees them."""
        transform = self.transform()
        inputs = samples.inputs
        if self.skew is not None:
            name = f"data.skew: {type(self.skew).__name__} is not possible with {type(self).__name__}, whose"
            if not isinstance(transform, ImageTransform):
                raise PflError(f"{name} inputs are no pictures of uint8 pixels; allowed: null")
            if self.skew.moves_pixels and self.task.target_shape(self.input_shape) is not None:
                raise PflError(f"{name} targets are masks, which it would leave; allowed: Blur, Colour, Noise")
            inputs = skewed(inputs, parts.values(), self.skew, (self.partition_seed, stream))
        resident = Samples(inputs, samples.targets, transform)
        return {split: ClientTable(resident, indices) for split, indices in parts.items()}

    def _poisoned(self, parts: dict[Split, Parts], poison: Poison) -> dict[Split, ClientTable]:
        """What clients train on once attackers attack, and what these want of test samples.

        Raises:
            PflError: If samples cannot be poisoned, or an attacker is no client.
        """
        samples = self.run_tables["train"].samples
        poison.check(samples, self.task, type(self).__name__)
        attackers = self.attacking(poison, "data.poison")
        made, splits = poisoned(samples, parts, poison, self.task, attackers, (self.seed, "poison"))
        return {split: ClientTable(made, indices) for split, indices in splits.items()}

    def attacking(self, attackers: Attackers, option: str) -> Tensor:
        """Which of the run's clients attack, ``[num_clients]``.

        Args:
            attackers: Says which.
            option: Where it was chosen, for an error.

        Raises:
            PflError: If one is no client that can train.
        """
        clients = len(self.held_out.roles(self.num_clients).training)
        attackers.find(self.client_names, clients, f"{option}.clients")
        attacks = torch.zeros(self.num_clients, dtype=torch.bool)
        attacks[:clients] = attackers.among(self.seed, clients)
        return attacks

    @classmethod
    def default_values(cls) -> dict[str, Any]:
        """What arguments that are left out become: numbers, and classes of objects."""
        parts = {"partition": cls.usual_partition, "participation": Participation, "speeds": FixedExponential}
        return {"num_clients": DEFAULT_CLIENTS, **parts}

    @discard_if_refused()
    def load_checked(self) -> tuple[LabelledData, LabelledData | None]:
        """The result of ``load``, if a network can learn from it.

        Raises:
            PflError: If the files cannot be read, or a sample cannot be used.
        """
        try:
            train, test = self.load()
        except OSError as error:
            path = error.filename or getattr(self, self.files_option)
            raise PflError(f"data.{self.files_option}: cannot read '{path}' ({error.strerror})") from error
        for name, split in (("training", train), ("test", test)):
            if split is not None:
                try:
                    split.check(self.task, self.transform(), self.input_shape, self.input_kind)
                except (ValueError, RuntimeError) as error:
                    raise PflError(f"{self.error_prefix}: {name} samples: {one_line(error)}") from error
        return train, test

    @property
    def error_prefix(self) -> str:
        """What an error begins with: the option that names the files, and the files; or just the class."""
        path = getattr(self, self.files_option)
        name = type(self).__name__
        return f"data.{self.files_option}: {name} in '{path}'" if path else f"data: {name}"

    def assign(self, samples: LabelledData, official: int | None) -> tuple[dict[Split, Parts], dict[Split, Parts]]:
        """Assign samples to clients and splits.

        Args:
            samples: The training samples, followed by those of the data set's own test split, if it has one.
            official: Index where the data set's own test split begins; None if it has none.

        Returns:
            Sample indices of each of the run's clients, by split; and of each client that is evaluated.
        """
        labels = samples.labels(self.task)
        splits = self.held_out.split(len(samples.targets), official, self.own_validation)
        rng = numpy_generator(self.partition_seed, "partition")
        dealt = self._deal(labels, splits, self.num_clients, rng)
        run = limit_samples(dealt, self.max_samples, rng, self.sample_fraction)
        if not self.new_clients:
            return run, run
        trained = np.concatenate(dealt["train"] + dealt["val"])
        splits = self.partition.for_new_clients(labels, splits, trained, np.concatenate(dealt["test"]))
        rng = numpy_generator(self.partition_seed, "new clients")
        dealt = self._deal(labels, splits, self.new_clients, rng, is_new=True)
        parts = limit_samples(dealt, self.max_samples, rng, self.sample_fraction)
        rng = numpy_generator(self.partition_seed, "new samples")
        return run, parts | limit_samples({"train": parts["train"]}, self.new_samples, rng)

    def _deal(
        self, labels: Labels, splits: Sequence[Indices], clients: int, rng: np.random.Generator, is_new: bool = False
    ) -> dict[Split, Parts]:
        """Assign samples, those for training and others, to some clients and to splits."""
        population = Population(clients, self.speeds.mean_times(clients), is_new)
        dealt = self.partition([labels.take(split) for split in splits], self.task.classes, population, rng)
        parts = [[split[part] for part in positions] for split, positions in zip(splits, dealt, strict=True)]
        return self.held_out.assign(parts, rng, self.overlap)

    def train_dataloader(self) -> RoundLoader:
        """One item per communication round.

        Raises:
            PflError: If ``max_steps`` of the trainer is not set.
        """
        assert self.trainer is not None
        return RoundLoader(self.make_round, self.trainer.max_steps)

    def val_dataloader(self) -> EvalLoader:
        """All clients that are evaluated, in the process that has their rows (see ``ClientStates``)."""
        return EvalLoader(self.make_eval_batch, self.local_order)

    test_dataloader = val_dataloader

    def make_round(self, index: int) -> Round:
        """The round with this index; a pure function of the index, the seeds and the cohort size."""
        if isinstance(self.participation, Asynchronous):
            return self._make_update(index, self.participation)
        cohort = self.participation.cohort(self.seed, index, self.training_counts, self.times(index))
        full_round = self._round(index, *cohort)
        dropped, times = self.participation.drops(self.seed, index, full_round.examples.ids, full_round.times)
        return full_round._replace(times=times).drop(dropped)

    def _round(self, index: int, clients: Sequence[int], times: Times) -> Round:
        """The round of some clients and their computation times, ``[cohort]`` both, with the largest client first."""
        ids = torch.tensor(clients)
        attacks = self.poison is not None and index >= self.poison.first_round
        table = self.attack_tables["poisoned"] if attacks else self.tables["train"]
        order = largest_first(table.counts[ids])
        examples = table.examples(ids[order])
        weights = client_weights(examples.counts, "samples")
        times = times[order.numpy()]
        return Round(index, self.seed, self.training_clients, examples, weights, times, self.communication_time)

    def times(self, index: int) -> Times:
        """Computation time of every client that can train, in the round with this index, ``[training_clients]``.

        Raises:
            PflError: If speeds of one's own give others than a number from 0 on for each client.
        """
        times = np.asarray(self.speeds.times(index, self.num_clients), dtype=np.float64)
        if times.shape != (self.num_clients,) or not ((times >= 0) & (times < np.inf)).all():
            raise PflError(
                f"data.speeds must give {self.num_clients} finite numbers of seconds, none below 0, got {times.size} "
                f"from {times.min(initial=np.inf):g} on of {type(self.speeds).__name__}"
            )
        times = times[: self.training_clients]
        return times * self.training_counts if self.time_per == "sample" else times

    def _make_update(self, index: int, participation: Asynchronous) -> Round:
        """The update of the server with this index, of clients that do not wait for each other."""
        update = participation.update(index, self.seed, self.training_clients, self.times, self.communication_time)
        flights = {flight.client: flight for flight in update.uploads}
        arrived = self._round(index, [*flights], np.array([flight.seconds for flight in flights.values()]))
        began = torch.tensor([flights[client].began for client in arrived.examples.ids.tolist()])
        shares = participation.shares((index - began).double())
        return arrived._replace(
            dropped=torch.tensor([flight.client for flight in update.dropped], dtype=torch.int64),
            dropped_times=np.array([flight.seconds for flight in update.dropped]),
            arrivals=Arrivals(update, began, shares, participation.uploads == "changes"),
        )

    @property
    def local_order(self) -> Tensor:
        """Ids of the clients that this process evaluates, largest first; after ``setup``."""
        return self.evaluation_order[self.evaluation_order % processes.count() == processes.rank()]

    def make_eval_batch(self, ids: Tensor) -> EvalBatch:
        """The evaluation of some clients, ``[clients]``, in this order."""
        evaluated: dict[str, Examples] = {split: self._scored(split).examples(ids) for split in self.eval_splits}
        return EvalBatch(self.seed, self.tables["train"].examples(ids), evaluated)

    def _scored(self, split: Split) -> ClientTable:
        """What clients are scored on in a split: benign ones alone, if there are any, and attackers apart."""
        if split == "attackers":
            return self.tables["test"].of(self.attackers)
        table = (self.tables | self.attack_tables)[split]
        return table.of(~self.attackers) if self.has_both else table

    @property
    def has_both(self) -> bool:
        """Whether some of the clients attack, and others do not."""
        return 0 < int(self.attackers.sum()) < len(self.attackers)

    @property
    def eval_splits(self) -> list[Split]:
        """The splits to evaluate: ``test``, and others if the options ask for them, or clients attack."""
        held_out = self.held_out
        shares: dict[Split, float] = {
            "val": held_out.val_fraction + held_out.val_clients,
            "test": 1,
            "choice": held_out.choice_fraction,
            "train": self.eval_train,
            "attackers": self.has_both,
            "backdoor": "backdoor" in self.attack_tables and not self.new_clients,
        }
        return [split for split, share in shares.items() if share]

    def fingerprint(self) -> str:
        """Hash of all samples, what transforms them and which of the run's clients holds which; after ``setup``."""
        kinds = filter(None, (self.run_tables, self.attack_tables))
        return "-".join(fingerprint_of(tables.values(), self.transform()) for tables in kinds)

    def content(self) -> str | None:
        """Hash of all samples, where they are read and not drawn by the settings; after ``setup``.

        It is the same on other machines, which may round otherwise what is computed of the samples.
        """
        samples = self.run_tables["train"].samples
        return hash_of(samples.inputs, samples.targets) if self.reads_samples else None

    def class_counts(self) -> dict[str, Indices]:
        """Number of samples per client and class, by split, ``[clients, classes]``; after ``setup``."""
        return {split: table.class_counts(self.task) for split, table in self.tables.items()}

    def client_dataloader(self, client: int, split: Split = "train", batch_size: int = 10) -> DataLoader[Any]:
        """One client's data as an ordinary ``DataLoader``, to inspect it or to train other models on it.

        Training samples come in random order, and augmented as in training, anew in each epoch.

        Args:
            client: The client's id.
            split: The split to load.
            batch_size: Samples in a batch.
        """
        examples = self.tables[split].examples(torch.tensor([client]))
        trains = split == "train"
        augments = trains and examples.samples.transform.random

        def batch(places: Sequence[tuple[Tensor]]) -> tuple[Tensor, Tensor]:
            positions = torch.stack([place for (place,) in places])[None]
            bits = torch.randint(torch.iinfo(torch.int64).max, positions.shape) if augments else None
            return examples.gather(positions, bits)[0], examples.targets(positions)[0]

        places = TensorDataset(examples.positions[0])
        return DataLoader(places, batch_size, shuffle=trains and len(places) > 0, collate_fn=batch)


def federated(trainer: pl.Trainer) -> FederatedDataModule:
    """The trainer's data module, narrowed to ``FederatedDataModule``.

    Args:
        trainer: A running trainer.

    Raises:
        PflError: If the trainer has another kind of data.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        raise PflError(f"the trainer's data must be a FederatedDataModule, got {type(data).__name__}")
    return data
