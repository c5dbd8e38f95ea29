"""A round of FedAvg in FedLab's standalone pipeline."""

from typing import Any

import torch
from fedlab.contrib.algorithm import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

from peers.plain_torch import network
from peers.work import Program, Weights, Work, run, threads


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


class Clients:
    """What FedLab asks a data set for; its loaders do not shuffle, since the samples are in order already."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.parts = [TensorDataset(x, y) for x, y in zip(inputs, targets, strict=True)]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader[Any]:
        """Batches of a client."""
        return DataLoader(self.parts[client], batch_size=batch_size)


class Pipeline(StandalonePipeline):
    """Without an evaluation."""

    def evaluate(self) -> None:
        """Nothing."""


class FedLab(Program):
    """``StandalonePipeline`` with FedAvg's own handler and serial trainer."""

    packages = ("fedlab", "torch", "torchvision", "numpy")

    def __init__(self, work: Work) -> None:
        torch.set_num_threads(threads())
        self.work, model = work, network(work)
        self.trainer = Trainer(model, len(work.targets))
        self.trainer.setup_optim(1, work.batch_size, work.lr, work.momentum)
        self.server = FedAvgServerHandler(model, global_round=0, sample_ratio=1.0)
        self.pipeline = Pipeline(self.server, self.trainer)

    def prepare(self, number: int) -> None:
        """Samples in the round's order."""
        self.trainer.setup_dataset(Clients(*map(torch.from_numpy, self.work.ordered(number))))
        self.server.global_round = number + 1

    def round(self, number: int) -> None:
        """One round of FedAvg: the pipeline stops after it."""
        self.pipeline.main()

    def weights(self) -> Weights:
        """The server's model."""
        return {name: tensor.numpy() for name, tensor in self.server.model.state_dict().items()}


if __name__ == "__main__":
    run(FedLab)
