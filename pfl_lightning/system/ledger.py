from dataclasses import dataclass


@dataclass
class Ledger:
    """What the rounds have cost: the bits communicated, and the samples that clients have trained on.

    Not counted are the gradients that ``GradientDoubling`` asks clients for, and the moments from which
    ``LinearFedRep`` starts: both are sent outside of rounds. Nor is the loss, one number, that each client reports to
    ``DeltaFL`` for an exact quantile. Nor are samples that are seen outside of training, such as those whose losses a
    method compares first, or those that a function passed to the engine's ``each`` sees.

    Attributes:
        up: What all clients sent in the last round.
        down: What they received from the server in the last round.
        total: Sum of both over all rounds.
        entries: Parameters that were sent and received on the link of one client in the last round, the mean over the
            participants.
        values: Those among them that are not zero, if zeros are packed; if not, all.
        samples: Samples that clients took gradients of, over all rounds; a sample counts again in each epoch.
    """

    up: int = 0
    down: int = 0
    total: int = 0
    entries: float = 0.0
    values: float = 0.0
    samples: int = 0

    def record(self, up: int, down: int, entries: float, values: float, samples: int) -> None:
        """Record a round, in which this was sent and so many samples were trained on; see the attributes."""
        self.up = up
        self.down = down
        self.total += up + down
        self.entries = entries
        self.values = values
        self.samples += samples

    def scalars(self) -> dict[str, float]:
        """The entries under their names in TensorBoard and ``metrics.csv``."""
        bits = {f"bits/{name}": float(getattr(self, name)) for name in ("up", "down", "total")}
        return {**bits, "samples/total": float(self.samples)}
