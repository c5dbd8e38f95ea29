"""The loop that everyone writes: one module and one optimizer, client after client."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from plain_loop import train, weighted_mean
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from peers.work import Program, Weights, Work, run, threads


class TorchProgram(Program):
    """A program whose server has a torch module.

    Attributes:
        model: The server's.
    """

    packages: tuple[str, ...] = ("torch", "numpy")
    model: nn.Module

    def __init__(self, work: Work) -> None:
        torch.set_num_threads(threads())
        self.work = work

    def ordered(self, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs and targets of each client, in the order in which round ``number`` uses them."""
        return list(zip(*map(torch.from_numpy, self.work.ordered(number)), strict=True))

    def weights(self) -> Weights:
        """The server's model."""
        return {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}


class Loaders:
    """What BlazeFL and FedLab ask a data set for; loaders do not shuffle, since the samples are in order already."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.clients: list[tuple[torch.Tensor, torch.Tensor]] = []

    def of(self, client: int) -> DataLoader[Any]:
        """Batches of a client."""
        return DataLoader(TensorDataset(*self.clients[client]), batch_size=self.batch_size)


class PlainTorch(TorchProgram):
    """FedAvg in plain PyTorch."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.model = network(work)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        self.model.load_state_dict(weighted_mean(self.uploads(number)))

    def uploads(self, number: int) -> Iterator[tuple[float, dict[str, torch.Tensor]]]:
        """Weight and model of each client after its training."""
        clients = len(self.work.targets)
        for client in range(clients):
            model = copy.deepcopy(self.model)
            train_client(model, self.work, number, client)
            yield 1 / clients, model.state_dict()


def train_client(model: nn.Module, work: Work, number: int, client: int) -> None:
    """One client's local training in a round."""
    inputs = torch.from_numpy(work.inputs[client])
    targets = torch.from_numpy(work.targets[client])
    order = torch.from_numpy(work.orders[number, client])
    optimizer = SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
    batches = ((inputs[batch], targets[batch]) for batch in order.split(work.batch_size))
    train(optimizer, batches, lambda x, y: F.cross_entropy(model(x), y))


def network(work: Work) -> nn.Sequential:
    """The multi-layer perceptron with the workload's first weights."""
    model = nn.Sequential()
    for layer, name in enumerate(work.layers):
        if layer:
            model.add_module(f"relu{layer}", nn.ReLU())
        model.add_module(name, nn.Linear(work.widths[layer], work.widths[layer + 1]))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in work.weights.items()})
    return model


if __name__ == "__main__":
    run(PlainTorch)
