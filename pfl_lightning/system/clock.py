from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.system.speeds import Times


@dataclass
class Clock:
    """Simulated wall clock: a round lasts as long as its slowest client computes, plus the communication time.

    Without a server, clients only wait for their neighbours: see ``advance_locally``.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078.

    Attributes:
        rounds: Rounds completed.
        compute: Seconds spent computing.
        total: Seconds spent computing and communicating.
        ready: Without a server, when each participant of the last round can start the next.
    """

    rounds: int = 0
    compute: float = 0.0
    total: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)

    def advance(self, times: Times, communication_time: float) -> None:
        """Advance by one round.

        Args:
            times: Computation time of each participant, ``[cohort]``.
            communication_time: Simulated seconds of communication in the round (SRPFL's C.T.).
        """
        self.rounds += 1
        slowest = float(times.max())
        self.compute += slowest
        self.total += slowest + communication_time

    def advance_to(self, compute: float, total: float) -> None:
        """Advance to the time of an update of the server, where clients do not wait for each other."""
        self.rounds += 1
        self.compute = max(self.compute, compute)
        self.total = max(self.total, total)

    def advance_locally(
        self, clients: Sequence[int], times: Times, hears: NDArray[np.bool_], communication_time: float
    ) -> None:
        """Advance by a round in which a client only waits for the clients that it hears.

        A client starts a round as soon as it has the last models of the clients that it hears. A client that did not
        take part in the last round starts when that round has ended for everyone. The clock shows when the slowest
        client has finished the round; the communication time counts once per round.

        Args:
            clients: The participants.
            times: Computation time of each of them, ``[cohort]``.
            hears: Whether a participant waits for another one, ``[receivers, senders]``; it always waits for itself.
            communication_time: Simulated seconds of communication in the round.
        """
        finished = np.array([self.ready.get(client, self.compute) for client in clients]) + times
        ready = np.where(hears | np.eye(len(clients), dtype=bool), finished, -np.inf).max(1)
        self.ready = dict(zip(clients, ready.tolist(), strict=True))
        self.rounds += 1
        start = self.compute
        self.compute = max(start, float(ready.max()))
        self.total += self.compute - start + communication_time

    def scalars(self) -> dict[str, float]:
        """Both times under their names in TensorBoard and ``metrics.csv``."""
        return {"time/compute": self.compute, "time/total": self.total}
