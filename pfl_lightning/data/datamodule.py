from abc import abstractmethod
from typing import ClassVar, Literal, NamedTuple

import lightning.pytorch as pl
import torch
from jsonargparse import lazy_instance
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pfl_lightning.client import Examples, Samples
from pfl_lightning.client.examples import Transform
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.data.partition import ClassShards, Partition
from pfl_lightning.data.rounds import Judgement, JudgementLoader, Round, RoundLoader
from pfl_lightning.seeding import numpy_generator
from pfl_lightning.system import FixedExponential, Participation, Speeds

Split = Literal["train", "val", "test"]


class LabelledData(NamedTuple):
    """One split of a data set: raw inputs ``[samples, ...]`` and labels ``[samples]``."""

    inputs: Tensor
    targets: Tensor


class FederatedDataModule(pl.LightningDataModule):
    """A data set split among clients, who takes part in a round, and how fast they are.

    Args:
        root: Folder with the data set's files; what torchvision calls root.
        num_clients: Number of clients in all, M.
        partition: How the samples are split among the clients.
        participation: Who takes part in a round; by default everyone.
        speeds: How long each client computes.
        communication_time: Simulated seconds that the communication of a round takes (SRPFL's C.T.).
        val_fraction: Share of each client's training samples that is held out for model selection, but
            never the last one; 0 for none.
        partition_seed: Seed of the split alone; it does not follow ``seed_everything``.
        seed: Seed of sampling and batch orders; on the command line it follows ``seed_everything``.
    """

    num_classes: ClassVar[int]
    input_shape: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        root: str = "data",
        num_clients: PositiveInt = 20,
        partition: Partition = lazy_instance(ClassShards),
        participation: Participation | None = None,
        speeds: Speeds = lazy_instance(FixedExponential),
        communication_time: NonNegativeFloat = 0.0,
        val_fraction: ClosedUnitInterval = 0.1,
        partition_seed: NonNegativeInt = 0,
        seed: NonNegativeInt = 1,
    ) -> None:
        super().__init__()
        self.root, self.num_clients, self.partition = root, num_clients, partition
        self.participation = participation or Participation()  # it has a state, so no two data modules share it
        self.speeds, self.communication_time = speeds, communication_time
        self.val_fraction, self.partition_seed, self.seed = val_fraction, partition_seed, seed
        self.tables: dict[Split, ClientTable] = {}

    @abstractmethod
    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read the training and the test split.

        Raises:
            PflError: If the files are missing or cannot be read.
        """

    @abstractmethod
    def transform(self) -> Transform:
        """What makes network inputs of raw ones."""

    def setup(self, stage: str | None = None) -> None:
        """Load the data and split it among the clients, once.

        Raises:
            PflError: If the files cannot be read or the partition is impossible.
        """
        if self.tables:
            return
        self.participation.check(self.num_clients)
        train, test = self.load()
        rng = numpy_generator(self.partition_seed, "partition")
        labels = [split.targets.numpy() for split in (train, test)]
        parts, test_parts = self.partition(labels, self.num_classes, self.num_clients, rng)
        samples = Samples(
            torch.cat([train.inputs, test.inputs]), torch.cat([train.targets, test.targets]), self.transform()
        )
        shuffled = [rng.permutation(part) for part in parts]
        held_out = [held_out_size(len(part), self.val_fraction) for part in parts]
        self.tables = {
            "train": ClientTable(samples, [part[size:] for part, size in zip(shuffled, held_out, strict=True)]),
            "val": ClientTable(samples, [part[:size] for part, size in zip(shuffled, held_out, strict=True)]),
            "test": ClientTable(samples, [part + len(train.targets) for part in test_parts]),
        }
        self._by_count = self.tables["train"].counts.argsort(descending=True, stable=True)

    def train_dataloader(self) -> RoundLoader:
        """One item per communication round.

        Raises:
            PflError: If the trainer does not say how many rounds.
        """
        assert self.trainer is not None
        return RoundLoader(self.make_round, self.trainer.max_steps)

    def val_dataloader(self) -> JudgementLoader:
        """All clients."""
        return JudgementLoader(self.make_judgement, self.num_clients)

    test_dataloader = val_dataloader

    def make_round(self, index: int) -> Round:
        """The round with this index; a pure function of it, the seeds and the size of the cohort."""
        chosen, times = self.participation.cohort(self.seed, index, self.num_clients, self.speeds)
        ids = torch.tensor(chosen)
        order = self.tables["train"].counts[ids].argsort(descending=True, stable=True)
        examples = self.tables["train"].examples(ids[order])
        return Round(index, self.seed, examples, times[order.numpy()], self.communication_time)

    def make_judgement(self, positions: slice) -> Judgement:
        """The clients at these positions of the order by falling count."""
        ids = self._by_count[positions]
        held_out: dict[str, Examples] = {split: self.tables[split].examples(ids) for split in self.held_out_splits}
        return Judgement(self.seed, self.tables["train"].examples(ids), held_out)

    @property
    def held_out_splits(self) -> list[Split]:
        """``val``, where a share is held out, and ``test``."""
        return ["val", "test"] if self.val_fraction > 0 else ["test"]

    def client_dataloader(self, client: int, split: Split = "train", batch_size: int = 10) -> DataLoader:
        """One client's data as an ordinary loader, to look at or to train something else on.

        Args:
            client: The client's id.
            split: Which of its splits.
            batch_size: Samples in a batch.
        """
        examples = self.tables[split].examples(torch.tensor([client]))
        every = torch.arange(examples.longest)[None]
        dataset = TensorDataset(examples.gather(every)[0], examples.targets(every)[0])
        return DataLoader(dataset, batch_size, shuffle=split == "train")


def held_out_size(samples: int, fraction: float) -> int:
    """How many of a client's samples are held out: its share, at least 1, but never the last one."""
    return min(max(1, round(samples * fraction)), samples - 1) if fraction > 0 else 0
