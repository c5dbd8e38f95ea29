"""A round of FedAvg in pfl-research."""

from itertools import cycle
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from peers.plain_torch import TorchProgram, network
from peers.work import Work, run


class Perceptron(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of a batch."""
        return F.cross_entropy(self.layers(inputs), targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        """Nothing."""
        return {}


class PflResearch(TorchProgram):
    """``FederatedAveraging`` on a ``SimulatedBackend``, one iteration at a time."""

    packages = ("pfl", "torch", "numpy")

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.algorithm = FederatedAveraging()
        self.model = network(work)
        self.data: list[tuple[torch.Tensor, torch.Tensor]] = []
        clients = cycle(range(len(work.targets)))
        users = FederatedDataset(self.user, lambda: next(clients))
        self.backend = SimulatedBackend(training_data=users, val_data=users)
        perceptron = Perceptron(self.model)
        self.pfl_model = PyTorchModel(
            perceptron,
            lambda parameters, lr: SGD(parameters, lr=lr, momentum=work.momentum),
            SGD(perceptron.parameters(), lr=1.0),  # the server goes all the way to the mean
        )
        self.training = NNTrainHyperParams(
            local_batch_size=work.batch_size, local_num_epochs=1, local_learning_rate=work.lr
        )

    def user(self, client: int) -> PyTorchTensorDataset:
        """A client's samples."""
        return PyTorchTensorDataset(self.data[client], user_id=str(client))

    def prepare(self, number: int) -> None:
        """Samples in the round's order."""
        self.data = self.ordered(number)

    def round(self, number: int) -> None:
        """One round of FedAvg: the algorithm goes on where it stopped, for one more iteration."""
        iterations = NNAlgorithmParams(
            central_num_iterations=number + 1,
            evaluation_frequency=len(self.work.orders),  # the warm-up, at least, has to be evaluated
            train_cohort_size=len(self.data),
            val_cohort_size=0,
        )
        self.algorithm.run(iterations, self.backend, self.pfl_model, self.training)


if __name__ == "__main__":
    run(PflResearch)
