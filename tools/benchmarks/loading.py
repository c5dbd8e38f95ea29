"""The batches of a round: ours from one table of samples, and torch's loaders, one for each client."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from benchmarks.device import CPU
from benchmarks.timing import Contest
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client import BackendName
from pfl_lightning.seeding import permutations

Batches = Iterator[tuple[Tensor, Tensor]]
AT_ONCE = 10  # clients whose inputs the engine makes at once: about so many of the usual MLP train together on a CPU


class OurBatches:
    """What the engine does for an epoch: the inputs of some clients at once, in the order in which they are visited."""

    def __init__(self, workload: Workload, device: torch.device = CPU) -> None:
        self.batch_size = workload.options["batch_size"]
        self.data = RandomClients(workload, device)
        self.rounds = 0

    def batches(self) -> Batches:
        """Inputs and labels, ``[clients, batch, ...]``, of a round."""
        batch = self.data.make_round(self.rounds)
        key = (batch.seed, "train", self.rounds, "all", "order", 0)
        self.rounds += 1
        for _, cohort in batch.examples.split(AT_ONCE):
            order = permutations(key, cohort.ids, cohort.device_counts, cohort.longest)
            inputs = cohort.gather(order).split(self.batch_size, dim=1)
            yield from zip(inputs, cohort.targets(order).split(self.batch_size, dim=1), strict=True)


class UsualBatches:
    """A loader for each client, over its part of the data set; its batches are then moved to the device."""

    def __init__(self, workload: Workload, device: torch.device = CPU) -> None:
        self.device = device
        table = RandomClients(workload).tables["train"]
        dataset = TensorDataset(table.samples.inputs, table.samples.targets)
        parts = table.flat[: int(table.counts.sum())].split(table.counts.tolist())
        size = workload.options["batch_size"]
        self.loaders = [DataLoader(Subset(dataset, part.tolist()), batch_size=size, shuffle=True) for part in parts]

    def batches(self) -> Batches:
        """Inputs and labels, ``[batch, ...]``, of a round."""
        for loader in self.loaders:
            for images, targets in loader:
                numbers = images.to(self.device).to(torch.get_default_dtype())
                yield (numbers / 255 - 0.5) / 0.5, targets.to(self.device)


def contest(workload: Workload, backends: Sequence[BackendName], device: torch.device = CPU) -> Contest:
    """Both; backends make no difference."""
    usual = UsualBatches(workload, device)
    ours = OurBatches(workload, device)
    actions = {"plain": lambda: exhaust(usual.batches()), "auto": lambda: exhaust(ours.batches())}
    return Contest(actions, int(workload.counts().sum()), dense=False, device=device)


def exhaust(batches: Batches) -> None:
    """Let go of one batch after another."""
    for _ in batches:
        pass
