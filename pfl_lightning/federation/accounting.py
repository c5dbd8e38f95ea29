"""What a run has cost so far: simulated time, what was sent, samples trained on, privacy budget."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from math import nan
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.data import Arrivals, FederatedDataModule, Round
from pfl_lightning.server import Aggregator, Message
from pfl_lightning.system import Clock, Ledger
from pfl_lightning.tree import Tree


def parameters_of(tree: Tree, names: Set[str]) -> Tree:
    """The tensors that are parameters of a network, or of one of several, whose names have words before them."""

    def is_parameter(words: Sequence[str]) -> bool:
        return any(".".join(words[start:]) in names for start in range(len(words)))

    return {name: tensor for name, tensor in tree.items() if is_parameter(name.split("."))}


class Volume(NamedTuple):
    """Size of what is sent.

    Attributes:
        bytes: Bytes.
        entries: Parameters.
        values: Those among them that are not zero, if zeros are packed; if not, all.
    """

    bytes: int = 0
    entries: int = 0
    values: int = 0

    def plus(self, other: "Volume", times: int = 1) -> "Volume":
        """The size of this, and of several others of the same size."""
        return Volume(*(mine + times * added for mine, added in zip(self, other, strict=True)))


class Traffic:
    """Counts what travels one way in a round, up or down.

    Args:
        message: How models are written. Unless zeros are packed, no number is read.
        parameters: Names of the network's parameters.

    Attributes:
        volume: What has been sent so far.
    """

    def __init__(self, message: Message, parameters: Set[str]) -> None:
        self.message = message
        self.parameters = parameters
        self.volume = Volume()

    def add(self, model: Tree, links: int) -> None:
        """Count a model that is sent, or several of the same size.

        Args:
            model: What is sent, ``[...]`` each, under the network's names, with or without words before them.
            links: Over how many links it is sent.
        """
        self.volume = self.volume.plus(self.measured({name: tensor[None] for name, tensor in model.items()}), links)

    def measured(self, models: Tree, bits: Mapping[str, Tensor] = MappingProxyType({})) -> Volume:
        """Size of some models.

        Args:
            models: ``[models, ...]`` each, under names as for ``add``.
            bits: Bits of those of which they are known, ``[models]`` each.
        """
        parameters = parameters_of(models, self.parameters).values()
        entries = sum(stack.numel() for stack in parameters)
        values = sum(int(stack.count_nonzero()) for stack in parameters) if self.message.packed else entries
        others = {name: stack for name, stack in models.items() if name not in bits}
        known = sum(int(each.sum()) for each in bits.values()) // 8
        return Volume(self.message.bytes(others, self.parameters) + known, entries, values)


COUNTS = ("calls", "bytes", "dropped", "weight_of_attackers")  # of an aggregator


class Accounting:
    """The costs of a run, recorded round by round; they are logged, saved and restored together.

    Args:
        aggregator: The method's aggregator, which counts its sums and knows their privacy budget.

    Attributes:
        clock: Rounds completed, and simulated seconds.
        ledger: Bits communicated, and samples trained on.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self.clock = Clock()
        self.ledger = Ledger()
        self.aggregator = aggregator
        self._arrivals: Arrivals | None = None  # of the last update, where clients do not wait for each other

    def record(self, batch: Round, up: Volume, down: Volume, uploads: Volume, samples: int) -> None:
        """Record what a round has cost.

        Args:
            batch: The round.
            up: What clients sent beside the uploads for sums; the first process counts it for all.
            down: What they received from the server, counted in the same way.
            uploads: What they uploaded for the round's sum.
            samples: Samples that all clients took gradients of.
        """
        sent, received = processes.broadcast((up, down))
        sent = sent.plus(uploads)
        link = sent.plus(received)
        participants = len(batch.participants)
        bits = 8 * (batch.uploaded + sent.bytes), 8 * received.bytes
        self.ledger.record(*bits, link.entries / participants, link.values / participants, samples)

    def advance(self, batch: Round) -> None:
        """Advance the simulated clock by a round: to its end, or until its slowest participant is done."""
        self._arrivals = batch.arrivals
        if batch.arrivals is None:
            self.clock.advance(batch.awaited[1], batch.communication_time)
        else:
            self.clock.advance_to(batch.arrivals.update.compute, batch.arrivals.update.total)

    def budget(self, data: FederatedDataModule) -> dict[str, float]:
        """The privacy budget that the rounds have taken so far, by name; empty if the aggregator has none."""
        clients = len(data.held_out.roles(data.num_clients).training)  # of the run, also when new ones are tested
        return self.aggregator.spent(self.clock.rounds, data.participation.pool_size or clients, clients)

    def scalars(self) -> dict[str, float]:
        """What was summed up and sent so far, by the names in TensorBoard and ``metrics.csv``.

        Where clients do not wait for each other also how stale the uploads of the last update were, how many updates
        there are in a simulated second, how many versions of the model clients in flight began with, and the share of
        the clients of which an upload has counted.
        """
        scalars = {**self.aggregator.scalars(), **self.ledger.scalars()}
        if self._arrivals is not None:
            update = self._arrivals.update
            staleness = (self.clock.rounds - 1 - self._arrivals.began).double()
            scalars |= {"staleness/mean": float(staleness.mean()), "staleness/largest": float(staleness.max())}
            scalars |= {"system/heard": update.heard, "system/versions": float(len(update.held))}
            scalars["system/updates_per_second"] = self.clock.rounds / (self.clock.total or nan)
        return scalars

    def state_dict(self) -> dict[str, Any]:
        """The totals so far, as plain values."""
        sums = {name: getattr(self.aggregator, name) for name in COUNTS}
        return {"clock": asdict(self.clock), "ledger": asdict(self.ledger), "sums": sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self.clock = Clock(**state["clock"])
        self.ledger = Ledger(**state["ledger"])
        for name, count in state["sums"].items():
            setattr(self.aggregator, name, count)
