"""Votes: server rules that need the upload of each client, where a sum is not enough."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import floor

import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.bounds import ROUNDING, ShareBelowHalf
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key
from pfl_lightning.server.aggregator import Aggregator, Together, Upload, WeightedSum
from pfl_lightning.server.messages import nbytes
from pfl_lightning.threads import pool
from pfl_lightning.tree import Tree, mix, select

CPU_ENTRIES = 1 << 12  # of all models at a time, which stay in the cache
DEVICE_ENTRIES = 1 << 20
BLOCK = 32  # models whose products with all later ones are taken at once


class Vote(Aggregator, ABC):
    """Sees every client's model, and makes one of them, entry by entry.

    Before that, a rule about whole models may replace the clients' changes by ``mixes`` of them. Clients count the
    same, since a number of samples is a claim of the client; models that are not finite do not count, and with fewer
    others than ``fewest`` nothing moves. What travels beside the models, such as training losses, is averaged by the
    clients' weights.

    """

    needs = "rows"

    def start(self, ids: Tensor, key: Key, limit: float | None = None, received: Tree | None = None) -> "Ballot":
        """Start a vote; see ``Aggregator.start``.

        Raises:
            PflError: If it is not about models, or there are too few participants.
        """
        name = type(self).__name__
        if received is None:
            raise PflError(
                f"model.aggregator: {name} is not possible for other sums than of models; allowed: Aggregator"
            )
        if len(ids) < self.fewest:
            raise PflError(
                f"model.aggregator: {name} needs {self.fewest} participants in a round, got {len(ids)}; see "
                "data.participation.pool_size and model.aggregator.share"
            )
        return Ballot(self, received)

    def mixes(self, products: Tensor, ids: Tensor) -> Tensor | None:
        """Of which clients' changes each row of the vote is made, ``[rows, changes]``; None for each client's own.

        Args:
            products: Inner products of the changes from what clients received, over all tensors, float64
                ``[changes, changes]``: those of the clients, and last that of ``memory`` if there is one.
            ids: The clients, ``[clients]``, in this order.
        """
        return None

    @abstractmethod
    def combine(self, rows: Tensor) -> Tensor:
        """The value of each of some entries of a tensor, ``[entries]``, given that of each row, ``[rows, entries]``."""

    def scalars(self) -> dict[str, float]:
        """See ``Aggregator.scalars``."""
        scalars = {**super().scalars(), "votes/dropped": float(self.dropped)}
        if self.weighs and self.attackers.any():
            scalars["votes/attackers"] = self.weight_of_attackers / max(self.calls, 1)
        return scalars

    @property
    def weighs(self) -> bool:
        """Whether the clients' models are weighed as wholes."""
        return type(self).mixes is not Vote.mixes


class Mean(Vote):
    """The mean of each entry over the clients, which count the same: what an attack does without a defence."""

    def combine(self, rows: Tensor) -> Tensor:
        """See ``Vote``."""
        return rows.mean(0)


class Median(Vote):
    """The median of each entry over the clients; of an even number of them the mean of the two in the middle.

    Paper: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates, ICML 2018, arXiv:1803.01498, Algorithm 1.
    """

    def combine(self, rows: Tensor) -> Tensor:
        """See ``Vote``."""
        return middle_of(in_order(rows))


class TrimmedMean(Vote):
    """The mean of each entry over the clients without its largest and its smallest values.

    Paper: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates, ICML 2018, arXiv:1803.01498, Algorithm 1.

    Args:
        share: Share of the clients whose values are left out at each end, rounded down to whole clients.
    """

    def __init__(self, share: ShareBelowHalf = 0.2) -> None:
        super().__init__()
        self.share = share

    def combine(self, rows: Tensor) -> Tensor:
        """See ``Vote``."""
        cut = floor(self.share * len(rows) + ROUNDING)
        return in_order(rows)[cut : len(rows) - cut].mean(0)


class Ballot(WeightedSum):
    """One vote in progress.

    Args:
        vote: The rule, which counts it.
        received: What clients received, ``[...]`` each: the tensors that are voted on.
    """

    def __init__(self, vote: Vote, received: Tree) -> None:
        super().__init__(vote)
        self.vote = vote
        self.received = received
        self.ids: list[Tensor] = []
        self.rows: list[Tree] = []

    def encode(self, ids: Tensor, weights: Tensor, tree: Tree, sent: int | None = None) -> Upload:
        """The models of some clients, ``[clients, ...]``, beside the weighted sum of what else they upload."""
        models = {name: stack.to(weights) for name, stack in select(tree, self.received).items()}
        others = {name: stack for name, stack in tree.items() if name not in models}
        return Upload({**mix(weights, others), **models}, nbytes(tree) if sent is None else sent)

    def add(self, ids: Tensor, upload: Upload) -> None:
        """Receive the models of these clients, ``[clients]``."""
        models = select(upload.tree, self.received)
        self.ids.append(ids)
        self.rows.append(models)
        others = {name: total for name, total in upload.tree.items() if name not in models}
        super().add(ids, Upload(others, upload.nbytes))

    def join(self, some_lack: bool) -> None:
        """Gather the models of all processes."""
        super().join(some_lack)
        names = processes.broadcast(sorted(self.rows[0]) if self.rows else [])
        ids = torch.cat([torch.zeros(0, dtype=torch.int64), *self.ids])
        arriving = processes.all_gather(len(ids))
        peers = len(arriving)
        if peers == 1:
            return
        rows = {}
        for name in names:
            nothing = self.received[name].new_zeros(0, *self.received[name].shape)
            stack = torch.cat([models[name] for models in self.rows] or [nothing])
            rows[name] = processes.all_to_all([stack] * peers, arriving)
        self.ids = [processes.all_to_all([ids] * peers, arriving)]
        self.rows = [rows]

    def result(self) -> Tree:
        """End the vote and count it; with too few finite models, the result is what clients received."""
        others = super().result()
        if self.vote.together is not None:
            self.meet(self.vote.together)
        ids = torch.cat(self.ids)
        order = ids.argsort()
        counts = finite(self.rows)[order]
        self.vote.dropped += int((~counts).sum())
        models = Models(self.rows, order[counts], select(self.received, self.rows[0]), self.vote.memory)
        if counts.sum() < self.vote.fewest:
            return {**others, **models.start}
        mixes = None
        if self.vote.weighs:
            clients = ids[order][counts]
            mixes = self.vote.mixes(models.inner_products(), clients)
            self.weigh_attackers(mixes, clients)
        result = models.map(lambda rows, start: self._value(mixed(rows, start, mixes)))
        for name, row in models.memory.items():
            row.copy_(result[name] - models.start[name])
        return {**others, **result}

    def meet(self, together: Together) -> None:
        """Let something happen to the models of all clients together, by rising id."""
        ids, order = torch.cat(self.ids).sort()
        stacks = {name: torch.cat([models[name] for models in self.rows]) for name in self.rows[0]}
        self.ids = [ids]
        self.rows = [together(ids, {name: stack[order.to(stack.device)] for name, stack in stacks.items()})]

    def weigh_attackers(self, mixes: Tensor | None, ids: Tensor) -> None:
        """Note which share of the result is of known attackers.

        Args:
            mixes: As from ``Vote.mixes``.
            ids: The clients, ``[clients]``.
        """
        if mixes is None or not self.vote.attackers.any():
            return
        weights = mixes[:, : len(ids)].sum(0)
        attackers = weights[self.vote.attackers[ids].to(weights.device)]
        self.vote.weight_of_attackers += float(attackers.sum() / weights.sum()) if weights.sum() > 0 else 0.0

    def _value(self, rows: Tensor) -> Tensor:
        """What the rule makes of rows, checked."""
        found = self.vote.combine(rows)
        if not isinstance(found, Tensor) or found.shape != rows.shape[1:]:
            kind = type(self.vote).__name__
            shape = list(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise PflError(
                f"model.aggregator: {kind}.combine must return a value for each of {rows.shape[1]} entries, got {shape}"
            )
        return found


class Models:
    """The models of a round, of which some entries are worked on at a time: joined they would leave the cache.

    Args:
        chunks: The models, ``[clients, ...]`` each.
        places: Those that count, among all of all chunks, in their order.
        start: What they began with, ``[...]`` each.
        memory: Changes of another one that counts as a last one, ``[...]`` each; empty for none.
    """

    def __init__(self, chunks: Sequence[Tree], places: Tensor, start: Tree, memory: Tree) -> None:
        self.chunks = chunks
        self.places = places
        self.start = start
        self.memory = select(memory, start)

    def map(self, work: Callable[[Tensor, Tensor], Tensor]) -> Tree:
        """The results for all entries of each tensor, ``[...]``.

        Args:
            work: Takes models, ``[models, entries]``, and what they began with, ``[entries]``; returns ``[entries]``.
        """
        return {name: torch.cat([*self._each(work, name)]).view(start.shape) for name, start in self.start.items()}

    def inner_products(self) -> Tensor:
        """Inner products of the changes of models over all tensors, float64 ``[models, models]``."""
        parts = (part for name in self.start for part in self._each(products_of_changes, name))
        return reduce(torch.add, parts)

    def _each(self, work: Callable[[Tensor, Tensor], Tensor], name: str) -> Iterator[Tensor]:
        """What some work makes of each part of a tensor's entries, in order; on a CPU in several threads."""
        chunks = [models[name].reshape(len(models[name]), -1) for models in self.chunks]
        on_cpu = chunks[0].device.type == "cpu"
        size = CPU_ENTRIES if on_cpu else DEVICE_ENTRIES
        start = self.start[name].reshape(-1).to(chunks[0])
        places = self.places.to(start.device)
        as_they_are = torch.equal(self.places, torch.arange(sum(map(len, chunks))))

        def part(first: int) -> Tensor:
            entries = slice(first, first + size)
            rows = torch.cat([chunk[:, entries] for chunk in chunks])
            rows = rows if as_they_are else rows[places]
            if name in self.memory:
                last = start[entries] + self.memory[name].reshape(-1)[entries].to(start)
                rows = torch.cat([rows, last[None]])
            return work(rows, start[entries])

        return pool(torch.get_num_threads() if on_cpu else 1).map(part, range(0, max(len(start), 1), size))


def finite(chunks: Sequence[Tree]) -> Tensor:
    """Which models have finite entries alone, ``[models]``."""
    return torch.cat([torch.stack([*map(finite_rows, models.values())]).all(0) for models in chunks]).cpu()


def finite_rows(stack: Tensor) -> Tensor:
    """Which rows have finite entries alone, ``[rows]``; mostly their sums tell, which are many times faster to take."""
    entries = stack.reshape(len(stack), -1)
    found = entries.sum(1).isfinite()
    return found if found.all() else entries.isfinite().all(1)


def in_order(rows: Tensor) -> Tensor:
    """The values of each entry in rising order, ``[rows, entries]``.

    On a CPU numpy sorts them, a fifth of torch's time, and where those of an entry lie side by side, a fourth of that.
    """
    if rows.device.type != "cpu" or rows.dtype not in (torch.float32, torch.float64):
        return rows.sort(0).values
    entries = rows.T.clone(memory_format=torch.contiguous_format)
    entries.numpy().sort(axis=1)
    return entries.T


def middle_of(ordered: Tensor) -> Tensor:
    """The median of each entry, ``[entries]``, given its values in rising order, ``[rows, entries]``."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def products_of_changes(models: Tensor, start: Tensor) -> Tensor:
    """Inner products of the changes of models over some entries, float64 ``[models, models]``; see ``Models.map``."""
    changes = models.to(torch.float64, copy=True).sub_(start)
    products = changes.new_zeros(len(changes), len(changes))
    for first in range(0, len(changes), BLOCK):
        products[first : first + BLOCK, first:] = changes[first : first + BLOCK] @ changes[first:].T
    above = products.triu(1)
    return products.triu() + above.T


def mixed(models: Tensor, start: Tensor, mixes: Tensor | None) -> Tensor:
    """Models whose changes from ``start``, ``[entries]``, are mixes of those of ``models``, ``[models, entries]``."""
    if mixes is None:
        return models
    mixes = mixes.to(models.device)
    rest = 1 - mixes.sum(1, keepdim=True)
    return (mixes.to(models) @ models).addcmul_(rest.to(models), start)
