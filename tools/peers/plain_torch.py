"""The loop that everyone writes: one module and one optimizer, client after client."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from peers.work import Program, Weights, Work, run, threads


class PlainTorch(Program):
    """FedAvg in plain PyTorch."""

    packages = ("torch", "numpy")

    def __init__(self, work: Work) -> None:
        torch.set_num_threads(threads())
        self.work = work
        self.inputs, self.targets = torch.from_numpy(work.inputs), torch.from_numpy(work.targets)
        self.network = network(work)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        mean = {name: torch.zeros_like(tensor) for name, tensor in self.network.state_dict().items()}
        orders = torch.from_numpy(self.work.orders[number])
        for inputs, targets, order in zip(self.inputs, self.targets, orders, strict=True):
            model = copy.deepcopy(self.network)
            optimizer = SGD(model.parameters(), lr=self.work.lr, momentum=self.work.momentum)
            for batch in order.split(self.work.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                mean[name] += tensor / len(self.inputs)
        self.network.load_state_dict(mean)

    def weights(self) -> Weights:
        """The network's state under the workload's names."""
        return {name: tensor.numpy() for name, tensor in self.network.state_dict().items()}


def network(work: Work) -> nn.Sequential:
    """The multi-layer perceptron with the workload's first weights."""
    model = nn.Sequential()
    for layer, (name, inputs, outputs) in enumerate(zip(work.layers, work.widths[:-1], work.widths[1:], strict=True)):
        if layer:
            model.add_module(f"relu{layer}", nn.ReLU())
        model.add_module(name, nn.Linear(inputs, outputs))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in work.weights.items()})
    return model


if __name__ == "__main__":
    run(PlainTorch)
