from dataclasses import dataclass

from pfl_lightning.system.speeds import Times


@dataclass
class Clock:
    """Simulated wall clock: a round lasts as long as its slowest client computes, plus the communication time.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078.

    Attributes:
        rounds: Rounds completed.
        compute: Seconds spent computing.
        total: Seconds spent computing and communicating.
    """

    rounds: int = 0
    compute: float = 0.0
    total: float = 0.0

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

    def scalars(self) -> dict[str, float]:
        """Both times, by their names in TensorBoard and ``metrics.csv``."""
        return {"time/compute": self.compute, "time/total": self.total}
