"""Votes: server rules that need the upload of each client, where a sum is not enough."""

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from math import floor

import numpy as np
import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.bounds import ROUNDING, ShareBelowHalf
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key
from pfl_lightning.server.aggregator import Aggregator, Upload, WeightedSum
from pfl_lightning.server.messages import nbytes
from pfl_lightning.tree import Tree, mix, select

AT_ONCE = 1 << 12  # entries of all models at a time, which stay in the cache


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
        return {**super().scalars(), "votes/dropped": float(self.dropped)}


class Median(Vote):
    """The median of each entry over the clients; of an even number of them the mean of the two in the middle.

    Paper: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates, ICML 2018, arXiv:1803.01498, Algorithm 1.
    """

    def combine(self, rows: Tensor) -> Tensor:
        """See ``Vote``."""
        ordered = in_order(rows)
        return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


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
        ids = torch.cat(self.ids) if self.ids else torch.zeros(0, dtype=torch.int64)
        names = processes.broadcast(sorted(self.rows[0]) if self.rows else [])
        arriving = processes.all_gather(len(ids))
        peers = len(arriving)
        rows = {}
        for name in names:
            stacks = [models[name] for models in self.rows]
            stack = torch.cat(stacks) if stacks else self.received[name].new_zeros(0, *self.received[name].shape)
            rows[name] = processes.all_to_all([stack] * peers, arriving)
        ids = processes.all_to_all([ids] * peers, arriving)
        order = ids.argsort()
        self.ids = [ids[order]]
        self.rows = [{name: chosen(stack, order) for name, stack in rows.items()}]

    def result(self) -> Tree:
        """End the vote and count it; with too few finite models, the result is what clients received."""
        others = super().result()
        (rows,) = self.rows
        flat = {name: stack.reshape(len(stack), -1) for name, stack in rows.items()}
        start = {name: self.received[name].reshape(1, -1).to(stack) for name, stack in flat.items()}
        # a sum is not finite where an entry is not, and takes a fourth of the time
        finite = torch.stack([stack.sum(1, dtype=torch.float64).isfinite() for stack in flat.values()]).all(0)
        self.vote.dropped += int((~finite).sum())
        if finite.sum() < self.vote.fewest:
            return {**others, **select(self.received, rows)}
        places = finite.nonzero()[:, 0]
        models = {name: chosen(stack, places) for name, stack in flat.items()}
        memory = select(self.vote.memory, models)
        models |= {name: torch.cat([models[name], start[name] + row.view(1, -1)]) for name, row in memory.items()}
        mixes = None
        if type(self.vote).mixes is not Vote.mixes:
            mixes = self.vote.mixes(inner_products(models, start), chosen(self.ids[0], places))
        result = {name: self._combined(stack, start[name], mixes) for name, stack in models.items()}
        for name, row in memory.items():
            row.copy_((result[name] - start[name][0]).view_as(row))
        return {**others, **{name: row.view(rows[name].shape[1:]) for name, row in result.items()}}

    def _combined(self, models: Tensor, start: Tensor, mixes: Tensor | None) -> Tensor:
        """The value of each entry, ``[entries]``, some entries at a time; arguments as for ``mixed``."""
        parts = zip(models.split(AT_ONCE, 1), start.split(AT_ONCE, 1), strict=True)
        with ThreadPoolExecutor(torch.get_num_threads() if models.device.type == "cpu" else 1) as pool:
            return torch.cat([*pool.map(lambda part: self._value(mixed(part[0], part[1], mixes)), parts)])

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


def chosen(rows: Tensor, places: Tensor) -> Tensor:
    """Some rows in some order; the same tensor if these are all of them as they are."""
    if len(places) == len(rows) and torch.equal(places.cpu(), torch.arange(len(rows))):
        return rows
    return rows[places.to(rows.device)]


def in_order(rows: Tensor) -> Tensor:
    """The values of each entry in rising order, ``[rows, entries]``.

    On a CPU numpy sorts them, which takes a fifth of the time of torch.
    """
    if rows.device.type != "cpu" or rows.dtype not in (torch.float32, torch.float64):
        return rows.sort(0).values
    return torch.from_numpy(np.sort(rows.numpy(), axis=0))


def inner_products(models: Tree, start: Tree) -> Tensor:
    """Inner products of the changes of models over all tensors, float64 ``[models, models]``.

    Args:
        models: The models, ``[models, entries]`` each.
        start: What they have changed from, ``[1, entries]`` each.
    """
    first = next(iter(models.values()))
    total = torch.zeros(len(first), len(first), dtype=torch.float64, device=first.device)
    for name, stack in models.items():
        for rows, before in zip(stack.split(AT_ONCE, 1), start[name].split(AT_ONCE, 1), strict=True):
            changes = rows.to(torch.float64, copy=True).sub_(before)
            total.addmm_(changes, changes.T)
    return total


def mixed(models: Tensor, start: Tensor, mixes: Tensor | None) -> Tensor:
    """Models whose changes from ``start``, ``[1, entries]``, are mixes of those of ``models``, ``[models, ...]``."""
    if mixes is None:
        return models
    mixes = mixes.to(models.device)
    rest = 1 - mixes.sum(1, keepdim=True)
    return (mixes.to(models) @ models).addcmul_(rest.to(models), start)
