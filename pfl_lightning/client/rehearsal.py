from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pfl_lightning.client.engine import Engine
from pfl_lightning.client.epochs import keeps_inputs
from pfl_lightning.client.examples import Examples
from pfl_lightning.client.layers import frozen_layers
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.predictions import Watch
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree


class Cost(NamedTuple):
    """What some local work costs each client.

    Attributes:
        visits: Samples visited, as ``Engine.report`` counts them, ``[clients]``.
        steps: Steps of SGD, ``[clients]``.
        samples: Samples that gradients are taken of, each as often as that happens, ``[clients]``.
    """

    visits: Tensor
    steps: Tensor
    samples: Tensor


class Rehearsal(Engine):
    """Stands in for an engine to learn what a method asks of it; nothing is trained or scored.

    One client is enough, since all do the same: ``cost`` says what that is for clients with other numbers of samples.
    Functions of clients (``each``) do run, and count for nothing.

    Args:
        network: Network of all clients.
    """

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__(network)
        self.phases: list[Phase] = []
        self.passes, self.gradients, self.augmented = 0, 0, False

    def train(self, examples: Examples, params: Params, phase: Phase, key: Key) -> tuple[Params, Tensor]:
        """Note the phase; the clients keep what they have received, and their losses are 0."""
        self.phases.append(phase)
        self.augmented = examples.samples.transform.random
        trained = params.owned(phase.trainable, len(examples))
        return trained, next(iter(trained.own.values())).new_zeros(len(examples))

    def gradient(self, examples: Examples, params: Params, names: Collection[str]) -> Tree:
        """Note one pass over the samples; gradients are 0."""
        self.passes += 1
        self.gradients += 1
        return {name: rows.zero_() for name, rows in params.room(names, len(examples)).items()}

    def score(self, examples: Examples, params: Params, *others: Watch) -> tuple[Tensor, Tensor]:
        """Note one pass over the samples; nothing is correct, and losses are 0."""
        self.passes += 1
        counts = examples.device_counts
        return torch.zeros_like(counts), torch.zeros_like(counts, dtype=torch.get_default_dtype())

    def cost(self, counts: Tensor) -> Cost:
        """What the work costs clients with so many samples, ``[clients]``."""
        visits, samples = counts * self.passes, counts * self.gradients
        steps = torch.zeros_like(counts)
        for phase in self.phases:
            visited = phase.epochs * phase.visited(counts)
            visits, samples = visits + visited, samples + phase.inner_steps * visited
            steps += phase.epochs * phase.inner_steps * -(-phase.visited(counts) // phase.batch_size)
            if frozen_layers(self.network, phase.trainable):
                visits += torch.where(keeps_inputs(phase, counts, self.augmented), counts, visited)
        return Cost(visits, steps, samples)
