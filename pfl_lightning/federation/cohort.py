"""Runs the clients of a round: in chunks that fit into memory, spread over the processes, with progress."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import starmap
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.federation.accounting import Volume
from pfl_lightning.federation.client_states import ClientStates
from pfl_lightning.processes import KEPT_BYTES
from pfl_lightning.server import Upload, WeightedSum
from pfl_lightning.threads import map_in_threads, with_lock
from pfl_lightning.tree import Tree, sum_type

CPU_BYTES = KEPT_BYTES  # largest stacked tensor of a chunk on a CPU: the allocator reuses blocks up to this size
DEVICE_BYTES = 1 << 30  # all stacked tensors of a chunk on an accelerator
LOSS = "train/loss"  # entry of the training losses among the uploads

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Progress:
    """Counters of the current work, such as training the clients of a round, for whoever displays them.

    Attributes:
        doing: The work, such as ``training``; empty when idle.
        since: When it began, in seconds of ``time.monotonic``.
        clients: Number of clients in all.
        reached: Number of clients that are done.
        visits: Samples that the engine has visited.
        gradients: Samples that it has taken gradients of, each as often as that happened.
    """

    def __init__(self) -> None:
        self.doing = ""
        self.since = self.visits = 0.0
        self.clients = self.reached = self.gradients = 0
        self._ends = torch.zeros(0)  # samples of the clients up to each one, [clients]
        self._per_sample: dict[str, float] = {}  # visits for each sample that clients hold, in earlier work of a kind

    def begin(self, doing: str, counts: Tensor) -> None:
        """Start some work, and reset the counters.

        Args:
            doing: The work, as a participle.
            counts: Samples that the clients hold, in the order in which clients will be done, ``[clients]``.
        """
        self._ends = counts.cumsum(0, dtype=torch.float64)
        self.clients = len(counts)
        self.visits = 0.0
        self.reached = self.gradients = 0
        self.doing = doing
        self.since = monotonic()

    def add(self, visits: float, gradients: int = 0) -> None:
        """Count samples that the engine has visited, and those among them that it took gradients of."""
        self.visits += visits
        self.gradients += gradients

    def reach(self, clients: int) -> None:
        """Count that many more clients as done."""
        self.reached = min(self.reached + clients, self.clients)

    def end(self) -> None:
        """End the work; its visits per sample become the estimate for the next work of this kind."""
        if self.clients and self._ends[-1]:
            self._per_sample[self.doing] = self.visits / float(self._ends[-1])
        self.doing = ""

    @property
    def share(self) -> float:
        """Share of the work that is done, in [0, 1]; the first time that such work is done, by its clients alone."""
        if not self.clients or not self._ends[-1]:
            return 0.0
        samples = float(self._ends[-1])
        expected = samples * self._per_sample.get(self.doing, 0.0)
        by_clients = float(self._ends[self.reached - 1]) / samples if self.reached else 0.0
        return max(by_clients, min(self.visits / expected, 1.0) if expected else 0.0)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the work is done; None before anything is done."""
        share = self.share
        return (monotonic() - self.since) * (1 - share) / share if share else None


class Trained(NamedTuple):
    """What the local work of some clients in a round results in.

    Attributes:
        states: What they keep, ``[clients, ...]`` each.
        upload: What the server receives of them, ``[clients, ...]`` each.
        losses: Their training losses, ``[clients]``.
        volume: Size of what they send.
    """

    states: Tree
    upload: Tree
    losses: Tensor
    volume: Volume


Work = Callable[[Tensor, Examples], Trained]  # takes the places of some participants in a round, and their examples
Group = tuple[Callable[[], AbstractContextManager[None]], Tensor]
Groups = Callable[[Tensor], Iterable[Group]]  # see ``Cohort``


def all_at_once(ids: Tensor) -> list[Group]:
    """All clients as one group."""
    return [(nullcontext, torch.arange(len(ids)))]


class RoundResult(NamedTuple):
    """What the clients of a round have done.

    Attributes:
        mean: Weighted mean of the uploads, ``[...]`` each; what a vote makes of models.
        loss: Weighted mean of the training losses, ``[]``.
        volume: Size of what was uploaded.
        samples: Samples that all clients took gradients of.
    """

    mean: Tree
    loss: Tensor
    volume: Volume
    samples: int


class Cohort:
    """Runs functions over many clients, in chunks that shrink when an accelerator runs out of memory.

    Args:
        chunk_size: Clients per chunk; None for a fixed rule by memory.
        sizes: Bytes of each tensor of one client, and of the outputs for one sample, in each group.
        progress: Counts clients as they finish.
        visited: Samples that an epoch visits of clients with so many of them, ``[clients]``.
        groups: Takes the ids of some clients, and returns the places of those that work together, rising, after what is
            to be entered while they do.

    Attributes:
        limit: Maximum chunk size since memory ran out; None if it never did.
    """

    LIMIT = "chunk_limit"  # entry of checkpoints

    def __init__(
        self,
        chunk_size: int | None,
        sizes: Sequence[Sequence[int]],
        progress: Progress | None = None,
        visited: Callable[[Tensor], Tensor] = torch.as_tensor,
        groups: Groups = all_at_once,
    ) -> None:
        self.chunk_size = chunk_size
        self.sizes = sizes
        self.progress = progress or Progress()
        self.visited = visited
        self.groups = groups
        self.limit: int | None = None

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Put the limit into a checkpoint."""
        checkpoint[self.LIMIT] = self.limit

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore what ``save`` put into a checkpoint."""
        self.limit = checkpoint[self.LIMIT]

    def train(
        self, works: Sequence[Work], batch: Round, clients: ClientStates, total: WeightedSum, dtype: torch.dtype
    ) -> RoundResult:
        """Train the participants of a round, store what they keep, and sum up what they upload.

        Args:
            works: Their local work, without side effects. If there are several, there is one for each group, and the
                groups work at the same time, each in one thread.
            batch: The round.
            clients: What clients keep.
            total: The sum, which has just begun.
            dtype: Type of the model's numbers.
        """
        weights = batch.weights.to(batch.examples.ids.device, sum_type(dtype), non_blocking=True)
        total.abstain(batch.left_out)
        total.drop(batch.dropped)
        volume = Volume()

        def upload(work: Work, chosen: Tensor, cohort: Examples) -> tuple[Examples, Tree, Upload, Volume]:
            chunk = places[chosen]
            trained = work(chunk, cohort)
            rows = {**trained.upload, LOSS: trained.losses}
            encoded = total.encode(cohort.host_ids, weights[chunk], rows, trained.volume.bytes)
            return (
                cohort,
                trained.states,
                encoded,
                trained.volume,
            )  # without the rows, whose memory the next chunk takes

        def store(cohort: Examples, states: Tree, encoded: Upload, sent: Volume) -> tuple[Tensor, Upload, Volume]:
            clients.scatter(cohort.ids, states)
            return cohort.host_ids, encoded, sent

        with self.share(clients, batch.examples, changes=True) as (places, examples):
            self.progress.begin("training", examples.counts)
            for ids, encoded, sent in self._stored([partial(upload, work) for work in works], store, examples):
                total.add(ids, encoded)
                volume = volume.plus(sent)
            self.progress.end()
            gradients = self.progress.gradients
        total.join(some_lack=len(batch.examples) < processes.count())
        mean = {name: tensor.to(dtype) for name, tensor in total.result().items()}
        _, entries, values, samples = map(sum, zip(*processes.all_gather((*volume, gradients)), strict=True))
        return RoundResult(mean, mean.pop(LOSS), Volume(total.uploaded, entries, values), samples)

    def _stored(
        self,
        works: Sequence[Callable[[Tensor, Examples], Any]],
        store: Callable[..., Result],
        examples: Examples,
    ) -> Iterator[Result]:
        """What ``store`` returns for each chunk's result, group by group and in order; ``works`` as for ``train``."""
        if len(works) == 1:
            yield from starmap(store, self.map(works[0], examples))
            return
        groups = [(nullcontext, places) for _, places in self.groups(examples.host_ids)]

        def of_group(_: object, number: int) -> list[Result]:
            return [*starmap(store, self._chunks(number, groups[number], works[number], examples))]

        costs = self.costs(examples)
        order = sorted(range(len(groups)), key=costs.__getitem__, reverse=True)  # so that threads end together
        results = dict(zip(order, map_in_threads(of_group, order, object, torch.get_num_threads()), strict=True))
        for number in range(len(groups)):
            yield from results[number]

    def costs(self, examples: Examples) -> list[int]:
        """Roughly how much work each group is: the bytes of a client, times the samples that its clients visit."""
        samples = self.visited(examples.counts)
        places = [places for _, places in self.groups(examples.host_ids)]
        return [sum(sizes) * int(samples[some].sum()) for sizes, some in zip(self.sizes, places, strict=True)]

    def map_clients(
        self,
        doing: str,
        work: Callable[[Examples], Tensor],
        examples: Examples,
        clients: ClientStates,
        dtype: torch.dtype,
    ) -> Tensor:
        """One number of each client, known to all processes, on the CPU, ``[clients]``.

        Args:
            doing: The work, as a participle.
            work: Takes some clients, and returns their numbers, ``[chunk]``.
            examples: Examples of all clients.
            clients: What clients keep.
            dtype: Type of the model's numbers.
        """
        numbers = torch.zeros(len(examples), dtype=sum_type(dtype))
        with self.share(clients, examples) as (places, own_examples):
            chunks = self.run(doing, lambda chosen, chunk: (places[chosen], work(chunk)), own_examples)
            for chosen, found in chunks:
                numbers[chosen] = found.cpu()
        return processes.all_reduce({"": numbers})[""]

    @contextmanager
    def share(
        self, clients: ClientStates, examples: Examples, changes: bool = False
    ) -> Iterator[tuple[Tensor, Examples]]:
        """The clients that this process works for, and meanwhile the rows of ``clients`` that are theirs.

        All clients are shared out among the processes, so that these visit about as many samples each.

        Args:
            clients: What the clients keep.
            examples: Examples of all clients.
            changes: Whether their rows may change.

        Yields:
            Places of this process's clients among all, rising, ``[share]``, and their examples.
        """
        shares = processes.split_by_cost(self.visited(examples.counts))
        own_places = shares[processes.rank()]
        with clients.placed([examples.host_ids[places] for places in shares], changes):
            yield own_places, examples.at(own_places)

    def run(self, doing: str, work: Callable[[Tensor, Examples], Result], examples: Examples) -> Iterator[Result]:
        """Call a function on each chunk of clients, as some work of its own; see ``map``."""
        self.progress.begin(doing, examples.counts)
        yield from self.map(work, examples)
        self.progress.end()

    def map(
        self, work: Callable[[Tensor, Examples], Result], examples: Examples, differing: list[int] | None = None
    ) -> Iterator[Result]:
        """Call a function on each chunk of clients, and yield its results, group by group and in order.

        Args:
            work: Takes the places of a chunk's clients, ``[chunk]``, and the chunk. It must have no side effects: if an
                accelerator runs out of memory, it is called again with half as many clients.
            examples: Examples of all clients.
            differing: Bytes of what the work stacks of one client, if this is known; work on small parts of the network
                then takes more clients at once. It may become known with the first chunk.

        Raises:
            PflError: If there is not enough memory for one client.
        """
        for number, group in enumerate(self.groups(examples.host_ids)):
            if number and differing:
                differing.clear()  # other clients take other memory
            yield from self._chunks(number, group, work, examples, differing)

    def _chunks(
        self,
        number: int,
        group: Group,
        work: Callable[[Tensor, Examples], Result],
        examples: Examples,
        differing: list[int] | None = None,
    ) -> Iterator[Result]:
        """The results of the chunks of the group of this number; further arguments as for ``map``."""
        entering, places = group
        members = examples.at(places)
        start = 0
        while start < len(members):
            with entering():
                size = self.size(members.ids.device, differing or (), number)
                before = self.progress.visits, self.progress.gradients
                try:
                    result = work(places[start : start + size], members.rows(start, start + size))
                except torch.OutOfMemoryError as error:
                    self.progress.visits, self.progress.gradients = before
                    self._halve(min(size, len(members)), error)
                    continue
            start += size
            with_lock(self.progress.reach)(size + min(0, len(members) - start))
            yield result
            del result  # free its memory before the next chunk

    def size(self, device: torch.device, differing: Sequence[int] = (), number: int = 0) -> int:
        """Clients per chunk of the group of this number; further arguments as for ``map``."""
        rule = max(_room(sizes, device) for sizes in (self.sizes[number], differing) if sizes)
        size = self.chunk_size or rule
        return min(size, self.limit or size)

    def _halve(self, size: int, error: Exception) -> None:
        if size == 1:
            raise PflError("not enough memory on the device, even for one client at a time") from error
        self.limit = size // 2
        log.warning("out of memory with %d clients at once; continuing with %d", size, self.limit)


def _room(sizes: Sequence[int], device: torch.device) -> int:
    """Number of clients that a device has room for, at least one, given the bytes of each tensor of a client.

    On a CPU a multiple of 4 or 2, if there are as many, so that those that train in threads end together.
    """
    if device.type != "cpu":
        return max(1, DEVICE_BYTES // sum(sizes))
    room = max(1, CPU_BYTES // max(sizes))
    return room - room % min(4, 1 << room.bit_length() - 1)
