from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.seeding import Key
from pfl_lightning.server.messages import nbytes
from pfl_lightning.tree import Tree, add_to, mix

Together = Callable[[Tensor, Tree], Tree]  # takes the ids of all clients of a round, and their models
UPLOADED = "sums/bytes"  # travels with the tensors that processes add up


class Aggregator:
    """Weighted sums of what clients upload: all that the server learns about them in a round.

    Participants may upload in any order and in any chunks:

        total = aggregator.start(ids, key)
        for some, weights, tree in chunks:
            total.add(some, total.encode(some, weights, tree))
        total.abstain(others)
        total.drop(dropped)
        total.join(...)  # with several processes, each of which has heard from others
        mean = total.result()

    Attributes:
        needs: Whether it needs a ``sum`` of the uploads, or the ``rows`` of all clients.
        hides: Whether the server is not to learn more than sums about any client.
        fewest: Smallest number of uploads for a sum; with fewer, the round is skipped and the model does not change.
        calls: Number of sums so far.
        bytes: Bytes that all clients have uploaded for them so far.
        dropped: Models that were left out so far since they were not finite, if it sees models.
        weight_of_attackers: Their share of a model that is a weighted sum, added up over all votes so far.
        together: What happens to all models of a round together, if it sees them; see ``Step.together``.
        attackers: Which clients are known to attack, ``[clients]``, for reports alone; empty for none.
        memory: What it remembers from round to round, ``[...]`` each; see ``initial_memory``. It is changed in place.
    """

    needs: ClassVar[Literal["sum", "rows"]] = "sum"
    hides: ClassVar[bool] = False
    fewest: int = 1

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0
        self.dropped = 0
        self.weight_of_attackers = 0.0
        self.together: Together | None = None
        self.attackers = torch.zeros(0, dtype=torch.bool)
        self.memory: Tree = {}

    def initial_memory(self, received: Tree) -> Tree:
        """What it remembers before the first round, which checkpoints keep; by default nothing.

        Args:
            received: What clients receive, ``[...]`` each.
        """
        return {}

    def start(self, ids: Tensor, key: Key, limit: float | None = None, received: Tree | None = None) -> "WeightedSum":
        """Start a sum.

        Args:
            ids: Clients that take part, ``[participants]``, on the CPU.
            key: Key for the randomness of secure sums; a different one for each sum.
            limit: Largest absolute value that an upload may have, for sums with a limit. Default: the aggregator's
                limit.
            received: What clients received, ``[...]`` each; private sums clip the changes to it.

        Raises:
            PflError: If a secure sum is not possible with these participants or this limit.
        """
        return WeightedSum(self)

    def count(self, uploaded: int) -> None:
        """Count one more sum, and the bytes uploaded for it."""
        self.calls += 1
        self.bytes += uploaded

    def check_precision(self, precision: str) -> None:
        """Refuse a trainer's precision that is too coarse; by default none is. See ``DPAggregator.check_precision``."""

    def spent(self, rounds: int, sample: int, clients: int) -> dict[str, float]:
        """The privacy budget that some rounds spend; empty for sums without one. See ``DPAggregator.spent``."""
        return {}

    def scalars(self) -> dict[str, float]:
        """Both counts under their names in TensorBoard and ``metrics.csv``."""
        return {"sums/calls": float(self.calls), "sums/bytes": float(self.bytes)}


class Upload(NamedTuple):
    """What some clients upload, already added up.

    Attributes:
        tree: One tensor for each name, ``[...]``.
        nbytes: Bytes that all of them send.
    """

    tree: Tree
    nbytes: int


class WeightedSum:
    """One sum in progress; this one adds up what clients upload in the clear.

    Args:
        aggregator: Where to count the sum.

    Attributes:
        uploaded: Bytes that clients have uploaded; complete when the sum has ended.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator = aggregator
        self.total: Tree = {}
        self.uploaded = 0

    def encode(self, ids: Tensor, weights: Tensor, tree: Tree, sent: int | None = None) -> Upload:
        """What some clients upload; has no side effects, so it can be repeated.

        Args:
            ids: The clients, ``[clients]``, on the CPU.
            weights: Their weights, ``[clients]``; the weights of a sum are not negative and sum to at most 1.
            tree: Their tensors, ``[clients, ...]``.
            sent: Bytes of these tensors as they are sent in the clear. Default: their size.
        """
        return Upload(mix(weights, tree), nbytes(tree) if sent is None else sent)

    def add(self, ids: Tensor, upload: Upload) -> None:
        """Receive what these clients upload, ``[clients]``; each client adds, abstains or is dropped once."""
        add_to(self.total, upload.tree)
        self.uploaded += upload.nbytes

    def abstain(self, ids: Tensor) -> None:
        """Note that these participants, ``[clients]``, have nothing to add."""

    def drop(self, ids: Tensor) -> None:
        """Note that the uploads of these participants, ``[clients]``, were dropped."""

    def join(self, some_lack: bool) -> None:
        """Add up what all processes have received, each of them from other participants.

        Args:
            some_lack: Whether other processes than the first may have received nothing.
        """
        self.total = processes.all_reduce({**self.total, UPLOADED: torch.tensor(self.uploaded)}, some_lack)
        self.uploaded = int(self.total.pop(UPLOADED))

    def result(self) -> Tree:
        """End the sum and count it.

        Returns:
            The weighted sum of the tensors, ``[...]``; in the precision of the weights, or in float64 if the sum is
            secure.

        Raises:
            PflError: If a secure sum has not heard from all participants, or their weights sum to more than 1.
        """
        self.aggregator.count(self.uploaded)
        return self.total
