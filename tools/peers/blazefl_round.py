"""A round of FedAvg in BlazeFL, serial."""

from enum import StrEnum
from typing import Any

import torch
from blazefl.contrib.fedavg import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from torch.utils.data import DataLoader, TensorDataset

from peers.plain_torch import network
from peers.work import Program, Weights, Work, run, threads


class Model(StrEnum):
    """BlazeFL finds models by name."""

    MLP = "mlp"


class Selector:
    """The one model that there is."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def select_model(self, model_name: str) -> torch.nn.Module:
        """With the workload's first weights."""
        return network(self.work)


class Clients:
    """What BlazeFL asks a data set for; its loaders do not shuffle, since the samples are in order already."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.parts: list[TensorDataset] = []

    def put_in_order(self, number: int) -> None:
        """The samples as round ``number`` uses them."""
        inputs, targets = map(torch.from_numpy, self.work.ordered(number))
        self.parts = [TensorDataset(x, y) for x, y in zip(inputs, targets, strict=True)]

    def get_dataloader(self, type_: str, cid: int, batch_size: int, generator: Any) -> DataLoader[Any]:
        """Batches of a client."""
        return DataLoader(self.parts[cid], batch_size=batch_size)


class Trainer(FedAvgBaseClientTrainer):
    """BlazeFL's serial client with momentum, which its own optimizer does not have."""

    def __init__(self, momentum: float, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.optimizer = torch.optim.SGD(self.model.parameters(), self.lr, momentum)

    def train(self, model_parameters: torch.Tensor, train_loader: Any, cid: int) -> Any:
        """One client's round; momentum starts at zero."""
        self.optimizer.state.clear()
        return super().train(model_parameters, train_loader, cid)


class BlazeFL(Program):
    """FedAvg's own handler and serial trainer, joined as in BlazeFL's examples."""

    packages = ("blazefl", "torch", "numpy")

    def __init__(self, work: Work) -> None:
        torch.set_num_threads(threads())
        self.data, clients = Clients(work), len(work.targets)
        selector, rounds, seed = Selector(work), len(work.orders), 0
        self.server = FedAvgBaseServerHandler(
            selector, Model.MLP, self.data, rounds, clients, 1.0, "cpu", work.batch_size, seed
        )
        self.trainer = Trainer(
            work.momentum, selector, Model.MLP, self.data, "cpu", clients, 1, work.batch_size, work.lr, seed
        )

    def prepare(self, number: int) -> None:
        """Samples in the round's order."""
        self.data.put_in_order(number)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        sampled, broadcast = self.server.sample_clients(), self.server.downlink_package()
        self.trainer.local_process(broadcast, sampled)
        for upload in self.trainer.uplink_package():
            self.server.load(upload)

    def weights(self) -> Weights:
        """The server's model."""
        return {name: tensor.numpy() for name, tensor in self.server.model.state_dict().items()}


if __name__ == "__main__":
    run(BlazeFL)
