"""A round of FedAvg in pfl_lightning."""

from functools import partial

import torch
from benchmarks.training import without_trainer

from peers.plain_torch import TorchProgram
from peers.work import Work, run
from pfl_lightning.client import LocalTraining, Samples
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import Numbers
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.processes import keep_freed_memory
from pfl_lightning.seeding import permutations


class FileClients(FederatedDataModule):
    """The clients of the file.

    The engine draws an order of its own, so the table lists the samples such that this puts them in the file's order.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(num_clients=len(work.targets), val_fraction=0.0)
        self.work = work
        self.num_classes = work.widths[-1]
        self.input_shape = (work.widths[0],)
        self.samples = Samples(*self.load()[0][:2], self.transform())

    def load(self) -> tuple[LabelledData, None]:
        """All samples, client after client."""
        inputs = torch.from_numpy(self.work.inputs).flatten(0, 1)
        return LabelledData(inputs, torch.from_numpy(self.work.targets).flatten()), None

    def transform(self) -> Numbers:
        """Inputs are what they are."""
        return Numbers()

    def put_in_order(self, number: int) -> None:
        """Arrange the samples for round ``number``."""
        ids = torch.arange(self.num_clients)
        samples = self.work.targets.shape[1]
        counts = torch.full_like(ids, samples)
        drawn = permutations((self.seed, "train", number, "all", "order", 0), ids, counts, samples)
        rows = torch.from_numpy(self.work.orders[number]) + ids[:, None] * samples
        self.tables = {"train": ClientTable(self.samples, list(rows.gather(1, drawn.argsort(1)).numpy()))}


class Ours(TorchProgram):
    """``FedAvg`` as ``pfl fit`` runs it, without a trainer and its logs."""

    packages = ("pfl_lightning", "torch", "numpy")

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        keep_freed_memory()
        self.data = FileClients(work)
        self.method = FedAvg(
            network=partial(MLP, hidden=work.widths[1:-1]),
            local=LocalTraining(batch_size=work.batch_size, lr=work.lr, momentum=work.momentum, weight_decay=0.0),
        )
        first = {name: torch.from_numpy(array) for name, array in work.weights.items()}
        self.method.build(self.data.input_shape, self.data.task, self.data.num_clients, pretrained=first)
        without_trainer(self.method)
        self.model = self.method.network

    def prepare(self, number: int) -> None:
        """Samples in the round's order."""
        self.data.put_in_order(number)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        self.method.training_step(self.data.make_round(number), 0)


if __name__ == "__main__":
    run(Ours)
