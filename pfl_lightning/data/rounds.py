from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import MOST
from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError
from pfl_lightning.system.asynchronous import ServerUpdate
from pfl_lightning.system.speeds import Times


class Arrivals(NamedTuple):
    """What an asynchronous update of the server knows of its uploads.

    Attributes:
        update: What has arrived, and when.
        began: Updates of the server before each client began, ``[cohort]``: the version of the model that it received.
        shares: How much each upload counts, float64 ``[cohort]``, in [0, 1]; both are on the CPU.
        changes: Whether it is the changes of the clients that count, or their models.
    """

    update: ServerUpdate
    began: Tensor
    shares: Tensor
    changes: bool

    def of(self, places: Tensor, newest: int) -> "Arrivals | None":
        """What is known of the uploads at some places; None if all these clients began with the newest version."""
        began = self.began[places]
        return None if bool((began == newest).all()) else self._replace(began=began, shares=self.shares[places])


class Round(NamedTuple):
    """The input of a communication round: the cohort, its data, weights and times.

    Attributes:
        round_index: Rounds completed before this one.
        seed: Seed of the experiment; local randomness depends on it, the round and the client.
        training_clients: Number of clients that can train, whether they take part or not.
        examples: Training examples of the participants, largest client first.
        weights: Weight of each participant's upload, float64 ``[cohort]``, on the CPU; the sum is 1.
        times: Computation time of each participant in simulated seconds, ``[cohort]``.
        communication_time: Simulated seconds of communication in this round.
        left_out: Ids of participants that a method did not choose, ``[clients]``, on the CPU.
        dropped: Ids of participants whose uploads are dropped, ``[clients]``, on the CPU; all else is without them.
        dropped_times: For how long each of them is waited for, in simulated seconds, ``[clients]``.
        uploaded: Bytes that participants have uploaded before they train, such as to be chosen.
        arrivals: What is known if clients do not wait for each other; ``examples`` then are of those whose uploads have
            arrived. None if all begin with the newest model.
    """

    round_index: int
    seed: int
    training_clients: int
    examples: Examples
    weights: Tensor
    times: Times
    communication_time: float
    left_out: Tensor = torch.zeros(0, dtype=torch.int64)
    dropped: Tensor = torch.zeros(0, dtype=torch.int64)
    dropped_times: Times = np.zeros(0)
    uploaded: int = 0
    arrivals: Arrivals | None = None

    @property
    def participants(self) -> Tensor:
        """Ids of all who receive the model, chosen or not, dropped or not, ``[participants]``, on the CPU."""
        return torch.cat([self.examples.host_ids, self.left_out, self.dropped])

    @property
    def awaited(self) -> tuple[Tensor, Times]:
        """Ids of those whose uploads are waited for, in vain or not, on the CPU, and for how long, ``[clients]``."""
        return torch.cat([self.examples.host_ids, self.dropped]), np.concatenate([self.times, self.dropped_times])

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
            raise PflError("select_clients must leave one client to train or more, got none")
        return self._only(chosen)._replace(left_out=torch.cat([self.left_out, self.examples.host_ids[~chosen]]))

    def drop(self, dropped: Tensor) -> "Round":
        """The round in which some uploads are dropped; the weights of the others are normalised to sum 1.

        Args:
            dropped: Whether each participant's upload is dropped, ``[cohort]``, on the CPU; all of them can be.
        """
        if not dropped.any():
            return self
        return self._only(~dropped)._replace(
            dropped=torch.cat([self.dropped, self.examples.host_ids[dropped]]),
            dropped_times=np.concatenate([self.dropped_times, self.times[dropped.numpy()]]),
        )

    def lacks_uploads(self, fewest: int) -> bool:
        """Whether some uploads were dropped, and fewer than so many are left."""
        return bool(len(self.dropped)) and len(self.examples) < fewest

    def _only(self, chosen: Tensor) -> "Round":
        weights = self.weights[chosen]
        times = self.times[chosen.numpy()]
        return self._replace(examples=self.examples.take(chosen), weights=weights / weights.sum(), times=times)


class EvalBatch(NamedTuple):
    """The input of an evaluation step: some of the clients.

    Attributes:
        seed: Seed of the experiment.
        train: Training examples of the clients, for fine-tuning; largest client first.
        evaluated: Examples of the same clients to evaluate on, by split: ``test``, and others if enabled.
    """

    seed: int
    train: Examples
    evaluated: dict[str, Examples]


def check_rounds(rounds: int) -> None:
    """Check the number of rounds.

    Raises:
        PflError: If it is not positive, such as Lightning's -1 for endless training, or too large to count.
    """
    if not 1 <= rounds <= MOST:
        raise PflError(f"trainer.max_steps must be a number of rounds, 1 to {MOST}, got {rounds}")


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
        self.make_round = make_round
        self.rounds = rounds
        self.done = 0

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


class EvalLoader:
    """Yields all clients in evaluation steps.

    Args:
        make_eval_batch: Makes the step with these clients.
        ids: The clients, ``[clients]``; if there are none, there is one step without a client, as Lightning wants it.
        at_once: Clients per step.
    """

    def __init__(self, make_eval_batch: Callable[[Tensor], EvalBatch], ids: Tensor, at_once: int = 1024) -> None:
        self.make_eval_batch = make_eval_batch
        self.steps = ids.split(at_once)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[EvalBatch]:
        return map(self.make_eval_batch, self.steps)
