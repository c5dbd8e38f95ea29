from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Progress:
    """How far a method is in the work that it is doing, such as training the clients of a round.

    It is only a counter, so that reporting costs nothing; who wants to show it reads it now and then.

    Attributes:
        doing: The work, such as ``training``; empty if there is none.
        since: When it began, in seconds of ``time.monotonic``.
        clients: Number of clients in all.
        reached: Number of clients that are done.
        done: Samples visited.
        total: Samples to visit.
    """

    def __init__(self) -> None:
        self.doing, self.since = "", 0.0
        self.clients, self.reached, self.done, self.total = 0, 0, 0.0, 0.0
        self._ends = torch.zeros(0)

    def begin(self, doing: str, visits: Tensor) -> None:
        """Begin some work.

        Args:
            doing: The work, as a participle.
            visits: Samples that each client will visit, in the order in which clients will be done, ``[clients]``; if
                there are none, clients count the same.
        """
        self._ends = (visits if visits.any() else torch.ones_like(visits)).cumsum(0, dtype=torch.float64)
        self.total = float(self._ends[-1]) if len(visits) else 0.0
        self.clients, self.reached, self.done = len(visits), 0, 0.0
        self.doing, self.since = doing, monotonic()

    def over(self, doing: str, visits: Tensor, chunks: Iterable[Result]) -> Iterator[Result]:
        """Yield the results of some work, chunk by chunk of clients, which begins and ends here; see ``begin``."""
        self.begin(doing, visits)
        yield from chunks
        self.end()

    def add(self, samples: float) -> None:
        """Count samples of clients that are not done yet."""
        self.done += samples

    def reach(self, clients: int) -> None:
        """Count that many more clients as done, whatever samples were counted for them."""
        self.reached = min(self.reached + clients, self.clients)
        if self.reached:
            self.done = float(self._ends[self.reached - 1])

    def end(self) -> None:
        """End the work."""
        self.doing = ""

    @property
    def share(self) -> float:
        """Share of the work that is done, in [0, 1]."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the work is done; None before anything is done."""
        share = self.share
        return (monotonic() - self.since) * (1 - share) / share if share else None
