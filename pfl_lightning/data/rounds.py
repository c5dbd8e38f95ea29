from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import MOST
from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError
from pfl_lightning.system.speeds import Times


class Round(NamedTuple):
    """The input of a communication round: the cohort, its data, weights and times.

    Attributes:
        round_index: Rounds completed before this one.
        seed: Seed of the experiment; local randomness depends on it, the round and the client.
        examples: Training examples of the participants, largest client first.
        weights: Weight of each participant's upload, float64 ``[cohort]``, on the CPU; the sum is 1.
        times: Computation time of each participant in simulated seconds, ``[cohort]``.
        communication_time: Simulated seconds of communication in this round.
        left_out: Ids of participants that a method did not choose, ``[clients]``, on the CPU.
        lost: Ids of participants whose uploads are lost, ``[clients]``, on the CPU; all else is without them.
        lost_times: For how long each of them is waited for, in simulated seconds, ``[clients]``.
    """

    round_index: int
    seed: int
    examples: Examples
    weights: Tensor
    times: Times
    communication_time: float
    left_out: Tensor = torch.zeros(0, dtype=torch.int64)
    lost: Tensor = torch.zeros(0, dtype=torch.int64)
    lost_times: Times = np.zeros(0)

    @property
    def participants(self) -> Tensor:
        """Ids of all who receive the model, chosen or not, lost or not, ``[participants]``, on the CPU."""
        return torch.cat([self.examples.host_ids, self.left_out, self.lost])

    @property
    def awaited(self) -> tuple[Tensor, Times]:
        """Ids of those whose uploads are waited for, in vain or not, on the CPU, and for how long, ``[clients]``."""
        return torch.cat([self.examples.host_ids, self.lost]), np.concatenate([self.times, self.lost_times])

    def to(self, device: torch.device, **_: Any) -> "Round":
        """The same round, with its examples on a device."""
        return self._replace(examples=self.examples.to(device))

    def take(self, chosen: Tensor) -> "Round":
        """The round with only the chosen participants; their weights are normalised to sum 1.

        The simulated clock waits for the chosen ones only.

        Args:
            chosen: Whether each participant is chosen, ``[cohort]``.

        Raises:
            PflError: If none is.
        """
        chosen = chosen.cpu()
        if not chosen.any():
            raise PflError("choose: no client is left to train; allowed: one or more")
        weights = self.weights[chosen]
        return self._replace(
            examples=self.examples.take(chosen),
            weights=weights / weights.sum(),
            times=self.times[chosen.numpy()],
            left_out=torch.cat([self.left_out, self.examples.host_ids[~chosen]]),
        )

    def lose(self, lost: Tensor) -> "Round":
        """The round in which some uploads are lost; the weights of the others are normalised to sum 1.

        Args:
            lost: Whether each participant's upload is lost, ``[cohort]``, on the CPU; all of them can be.
        """
        if not lost.any():
            return self
        weights = self.weights[~lost]
        return self._replace(
            examples=self.examples.take(~lost),
            weights=weights / weights.sum(),
            times=self.times[~lost.numpy()],
            lost=torch.cat([self.lost, self.examples.host_ids[lost]]),
            lost_times=np.concatenate([self.lost_times, self.times[lost.numpy()]]),
        )


class Judgement(NamedTuple):
    """The input of an evaluation step: some of the clients.

    Attributes:
        seed: Seed of the experiment.
        train: Training examples of the clients, for refitting; largest client first.
        judged: Examples of the same clients to evaluate on, by split: ``test``, and others if enabled.
    """

    seed: int
    train: Examples
    judged: dict[str, Examples]


def check_rounds(rounds: int) -> None:
    """Check the number of rounds.

    Raises:
        PflError: If it is not positive, such as Lightning's -1 for endless training, or too large to count.
    """
    if not 1 <= rounds <= MOST:
        raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: a number of rounds, 1 to {MOST}")


class RoundLoader:
    """Yields rounds; after loading a checkpoint it continues with the next round.

    It has a length, because otherwise Lightning would prefetch a round before stage doubling has set its cohort size.

    Args:
        make_round: Makes the round with this index.
        rounds: Total number of rounds.

    Raises:
        PflError: If ``rounds`` is not positive.
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
        """Continue after that number of rounds."""
        self.done = state["done"]


class JudgementLoader:
    """Yields all clients in evaluation steps.

    Args:
        make_judgement: Makes the step with these clients.
        ids: The clients, ``[clients]``; if there are none, there is one step without a client, as Lightning wants it.
        at_once: Clients per step.
    """

    def __init__(self, make_judgement: Callable[[Tensor], Judgement], ids: Tensor, at_once: int = 1024) -> None:
        self.make_judgement, self.steps = make_judgement, ids.split(at_once)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Judgement]:
        return map(self.make_judgement, self.steps)
