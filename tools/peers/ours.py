"""A round of FedAvg in pfl_lightning."""

from functools import partial

import torch
from benchmarks.training import without_trainer

from peers.work import Program, Weights, Work, run, threads
from pfl_lightning.client import Samples
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import Numbers
from pfl_lightning.memory import keep_freed_memory
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.seeding import permutations


class FileClients(FederatedDataModule):
    """The clients of the file.

    The engine draws an order of its own, so the table lists the samples such that this puts them in the file's order.
    """

    def __init__(self, work: Work) -> None:
        clients, self.held = work.targets.shape
        super().__init__(num_clients=clients, val_fraction=0.0)
        self.work, self.num_classes, self.input_shape = work, work.widths[-1], (work.widths[0],)
        self.samples = Samples(*self.load()[0][:2], self.transform())

    def load(self) -> tuple[LabelledData, None]:
        """All samples, client after client."""
        inputs, targets = torch.from_numpy(self.work.inputs), torch.from_numpy(self.work.targets)
        return LabelledData(inputs.flatten(0, 1), targets.flatten()), None

    def transform(self) -> Numbers:
        """Inputs are what they are."""
        return Numbers()

    def put_in_order(self, number: int) -> None:
        """Arrange the samples for round ``number``."""
        ids = torch.arange(self.num_clients)
        counts = torch.full_like(ids, self.held)
        drawn = permutations((self.seed, "train", number, "all", "order", 0), ids, counts, self.held)
        rows = torch.from_numpy(self.work.orders[number]) + ids[:, None] * self.held
        self.tables = {"train": ClientTable(self.samples, list(rows.gather(1, drawn.argsort(1)).numpy()))}


class Ours(Program):
    """``FedAvg`` as ``pfl fit`` runs it, without a trainer and its logs."""

    packages = ("pfl_lightning", "torch", "numpy")

    def __init__(self, work: Work) -> None:
        keep_freed_memory()
        torch.set_num_threads(threads())
        self.data = FileClients(work)
        self.method = FedAvg(
            partial(MLP, hidden=work.widths[1:-1]),
            batch_size=work.batch_size,
            lr=work.lr,
            momentum=work.momentum,
            weight_decay=0.0,
        )
        first = {name: torch.from_numpy(array) for name, array in work.weights.items()}
        self.method.build(self.data.input_shape, self.data.num_classes, self.data.num_clients, pretrained=first)
        without_trainer(self.method)

    def prepare(self, number: int) -> None:
        """Samples in the round's order."""
        self.data.put_in_order(number)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        self.method.training_step(self.data.make_round(number), 0)

    def weights(self) -> Weights:
        """The server's model."""
        return {name: tensor.numpy() for name, tensor in self.method.network.state_dict().items()}


if __name__ == "__main__":
    run(Ours)
