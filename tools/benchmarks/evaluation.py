"""Accuracy of every client's own model: our engine, and a loop over clients with one module."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import training
from benchmarks.device import CPU
from benchmarks.timing import Contest
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client import BackendName, Examples

Scores = tuple[Tensor, Tensor]  # correct predictions and summed losses, [clients] each, in the order of the ids


class OurScores(training.Ours):
    """FedRep's clients with heads of their own, evaluated by the engine."""

    def __init__(self, workload: Workload, data: RandomClients, backend: BackendName) -> None:
        super().__init__(workload, data, backend)
        source = torch.Generator().manual_seed(0)
        clients = torch.arange(data.num_clients, device=data.device)
        heads = self.method.clients.gather(clients)
        for rows in heads.values():
            rows += (torch.randn(rows.shape, generator=source, dtype=torch.float32) / 10).to(data.device)
        self.method.clients.scatter(clients, heads)

    def turn(self) -> Scores:
        """Evaluate all clients."""
        method = self.method
        examples = self.data.make_round(0).examples

        def work(_: Tensor, chunk: Examples) -> Scores:
            sums = method.engine.sums(chunk, method.received(chunk.ids))
            return sums["correct"], sums["loss"]

        order = examples.ids.argsort()
        correct, losses = (torch.cat(parts)[order] for parts in zip(*method.cohort.map(work, examples), strict=True))
        return correct, losses


class PlainScores(training.Plain):
    """One module, which takes each client's head in turn."""

    def __init__(self, workload: Workload, ours: OurScores) -> None:
        super().__init__(workload, ours.data)
        heads = ours.method.clients.gather(torch.arange(ours.data.num_clients, device=ours.data.device))
        self.loop.states = {client: {name: rows[client] for name, rows in heads.items()} for client in self.loop.data}

    @torch.no_grad()
    def turn(self) -> Scores:
        """Evaluate all clients."""
        network = self.loop.network.eval()
        correct = []
        losses = []
        for client, (inputs, targets) in sorted(self.loop.data.items()):
            network.load_state_dict(self.loop.states[client], strict=False)
            outputs = network(inputs)
            correct.append((outputs.argmax(1) == targets).sum())
            losses.append(F.cross_entropy(outputs, targets, reduction="sum"))
        return torch.stack(correct), torch.stack(losses)


def contestants(
    workload: Workload, backends: Sequence[BackendName], device: torch.device = CPU
) -> tuple[PlainScores, dict[str, OurScores]]:
    """The plain loop and each backend, with the same clients and the same models."""
    data = RandomClients(workload, device)
    plain = PlainScores(workload, OurScores(workload, data, "sequential"))
    return plain, {backend: OurScores(workload, data, backend) for backend in backends}


def contest(workload: Workload, backends: Sequence[BackendName], device: torch.device = CPU) -> Contest:
    """The plain loop and each backend."""
    return training.between(*contestants(workload, backends, device), device)
