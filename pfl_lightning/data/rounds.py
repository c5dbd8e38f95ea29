from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError
from pfl_lightning.system.speeds import Times


class Round(NamedTuple):
    """What a communication round works on.

    Attributes:
        round_index: Rounds completed before this one.
        seed: Seed of the experiment; local randomness is drawn from it, the round and the client.
        examples: Training examples of the participants, largest first.
        weights: Weight of each participant's upload, float64 ``[cohort]``, on the CPU; they add up to 1.
        times: Simulated seconds that each participant computes, ``[cohort]``.
        communication_time: Simulated seconds that the round's communication takes.
    """

    round_index: int
    seed: int
    examples: Examples
    weights: Tensor
    times: Times
    communication_time: float

    def to(self, device: torch.device, **_: Any) -> "Round":
        """The same round with its examples on a device."""
        return self._replace(examples=self.examples.to(device))

    def take(self, chosen: Tensor) -> "Round":
        """The round with some of its participants; their weights add up to 1 again.

        Args:
            chosen: Whether a participant is among them, ``[cohort]``.
        """
        chosen = chosen.cpu()
        weights = self.weights[chosen]
        examples, times = self.examples.take(chosen), self.times[chosen.numpy()]
        return self._replace(examples=examples, weights=weights / weights.sum(), times=times)


class Judgement(NamedTuple):
    """What an evaluation step works on: some of all clients.

    Attributes:
        seed: Seed of the experiment.
        train: Training examples, on which personal parts may be refitted; largest first.
        judged: Examples to judge on, of the same clients, by split: ``val``, ``test`` and, where wanted, ``train``.
    """

    seed: int
    train: Examples
    judged: dict[str, Examples]


def check_rounds(rounds: int) -> None:
    """Refuse a trainer that is not told how many rounds there are.

    Raises:
        PflError: If it is not.
    """
    if rounds < 1:
        raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: a number of rounds")


class RoundLoader:
    """Yields rounds, and continues behind the last one that was yielded before a checkpoint.

    It has a length, or Lightning would fetch one round ahead, before stage doubling has spoken.

    Args:
        make_round: Makes the round with this index.
        rounds: Number of rounds in all.

    Raises:
        PflError: If that is not a number of rounds.
    """

    def __init__(self, make_round: Callable[[int], Round], rounds: int) -> None:
        check_rounds(rounds)
        self.make_round, self.rounds, self.done = make_round, rounds, 0

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Round]:
        while self.done < self.rounds:
            self.done += 1  # before the yield: a checkpoint is written while this is suspended
            yield self.make_round(self.done - 1)

    def state_dict(self) -> dict[str, int]:
        """The number of rounds yielded."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue behind that number."""
        self.done = state["done"]


class JudgementLoader:
    """Yields all clients, some at a time.

    Args:
        make_judgement: Makes the evaluation step of these positions in the order of evaluation.
        clients: Number of clients.
        at_once: Clients in a step.
    """

    def __init__(self, make_judgement: Callable[[slice], Judgement], clients: int, at_once: int = 1024) -> None:
        self.make_judgement, self.clients, self.at_once = make_judgement, clients, at_once

    def __len__(self) -> int:
        return -(-self.clients // self.at_once)

    def __iter__(self) -> Iterator[Judgement]:
        for start in range(0, self.clients, self.at_once):
            yield self.make_judgement(slice(start, start + self.at_once))
