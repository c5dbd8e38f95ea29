"""A round of FedAvg in BlazeFL, serial."""

from enum import StrEnum
from typing import Any

import torch
from blazefl.contrib.fedavg import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from torch.utils.data import DataLoader

from peers.plain_torch import Loaders, TorchProgram, network
from peers.work import Work, run


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


class Clients(Loaders):
    """The data set."""

    def get_dataloader(self, type_: str, cid: int, batch_size: int, generator: Any) -> DataLoader[Any]:
        """Batches of a client."""
        return self.of(cid)


class Trainer(FedAvgBaseClientTrainer):
    """BlazeFL's serial client with momentum, which its own optimizer does not have."""

    def __init__(self, momentum: float, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.optimizer = torch.optim.SGD(self.model.parameters(), self.lr, momentum)

    def train(self, model_parameters: torch.Tensor, train_loader: Any, cid: int) -> Any:
        """One client's round; momentum starts at zero."""
        self.optimizer.state.clear()
        return super().train(model_parameters, train_loader, cid)


class BlazeFL(TorchProgram):
    """FedAvg's own handler and serial trainer, joined as in BlazeFL's examples."""

    packages = ("blazefl", "torch", "numpy")

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.data = Clients(work.batch_size)
        start = (Selector(work), Model.MLP, self.data)
        clients = len(work.targets)
        seed = 0
        self.server = FedAvgBaseServerHandler(*start, len(work.orders), clients, 1.0, "cpu", work.batch_size, seed)
        self.trainer = Trainer(work.momentum, *start, "cpu", clients, 1, work.batch_size, work.lr, seed)
        self.model = self.server.model

    def prepare(self, number: int) -> None:
        """Samples in the round's order."""
        self.data.clients = self.ordered(number)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        sampled = self.server.sample_clients()
        self.trainer.local_process(self.server.downlink_package(), sampled)
        for upload in self.trainer.uplink_package():
            self.server.load(upload)


if __name__ == "__main__":
    run(BlazeFL)
