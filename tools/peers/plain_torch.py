"""The loop that everyone writes: one module and one optimizer, client after client."""

import copy
from collections.abc import Iterator

import torch
from plain_loop import train, weighted_mean
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

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

    def weights(self) -> Weights:
        """The server's model."""
        return {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}


class PlainTorch(TorchProgram):
    """FedAvg in plain PyTorch."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.model = network(work)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        self.model.load_state_dict(weighted_mean(uploads(self.model, self.work, number)))


def uploads(model: nn.Module, work: Work, number: int) -> Iterator[tuple[float, dict[str, torch.Tensor]]]:
    """Weight and model of each client after its training in a round."""
    clients = len(work.targets)
    for client in range(clients):
        trained = copy.deepcopy(model)
        train_client(trained, work, number, client)
        yield 1 / clients, trained.state_dict()


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
