"""A round of FedAvg in FedLab's standalone pipeline."""

from typing import Any

import torch
from fedlab.contrib.algorithm import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader

from peers.plain_torch import Loaders, TorchProgram, network
from peers.work import Work, run


class Trainer(FedAvgSerialClientTrainer):
    """FedLab's client with momentum, which its own ``setup_optim`` does not take."""

    def setup_optim(self, epochs: int, batch_size: int, lr: float, momentum: float = 0.0) -> None:
        """Epochs, batches and the optimizer that all clients share."""
        super().setup_optim(epochs, batch_size, lr)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr, momentum)

    def train(self, model_parameters: torch.Tensor, train_loader: Any) -> Any:
        """One client's round; momentum starts at zero."""
        self.optimizer.state.clear()
        return super().train(model_parameters, train_loader)


class Clients(Loaders):
    """The data set."""

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader[Any]:
        """Batches of a client."""
        return self.of(client)


class Pipeline(StandalonePipeline):
    """Without an evaluation."""

    def evaluate(self) -> None:
        """Nothing."""


class FedLab(TorchProgram):
    """``StandalonePipeline`` with FedAvg's own handler and serial trainer."""

    packages = ("fedlab", "torch", "torchvision", "numpy")

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        model = network(work)
        self.data = Clients(work.batch_size)
        self.trainer = Trainer(model, len(work.targets))
        self.trainer.setup_optim(1, work.batch_size, work.lr, work.momentum)
        self.trainer.setup_dataset(self.data)
        self.server = FedAvgServerHandler(model, global_round=0, sample_ratio=1.0)
        self.pipeline = Pipeline(self.server, self.trainer)
        self.model = self.server.model

    def prepare(self, number: int) -> None:
        """Samples in the round's order."""
        self.data.clients = self.ordered(number)
        self.server.global_round = number + 1

    def round(self, number: int) -> None:
        """One round of FedAvg: the pipeline stops after it."""
        self.pipeline.main()


if __name__ == "__main__":
    run(FedLab)
