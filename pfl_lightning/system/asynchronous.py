"""Asynchronous participation: who uploads when, which does not depend on what clients learn."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import seed_of
from pfl_lightning.system.participation import Participation
from pfl_lightning.system.speeds import Times


class Staleness(ABC):
    """The share of an upload that counts; 1 where the client began with the newest model.

    Paper: Xie, Koyejo, Gupta, "Asynchronous Federated Optimization" (FedAsync), 2019, arXiv:1903.03934.
    """

    @abstractmethod
    def __call__(self, updates: Tensor) -> Tensor:
        """Shares in [0, 1], ``[uploads]``, given the updates since each client began, float64 ``[uploads]``."""


class Constant(Staleness):
    """Every upload counts in full."""

    def __call__(self, updates: Tensor) -> Tensor:
        """1 for all."""
        return updates.new_ones(len(updates))


class Polynomial(Staleness):
    """(1 + updates)^-exponent.

    Args:
        exponent: FedAsync's a; FedBuff has 0.5.
    """

    def __init__(self, exponent: NonNegativeFloat = 0.5) -> None:
        self.exponent = exponent

    def __call__(self, updates: Tensor) -> Tensor:
        """The powers."""
        shares: Tensor = (1 + updates) ** -self.exponent
        return shares


class Hinge(Staleness):
    """1 for a few updates, then 1 / (1 + slope * (updates - free)).

    Args:
        slope: How fast it falls, FedAsync's a.
        free: Updates that cost nothing, FedAsync's b.
    """

    def __init__(self, slope: NonNegativeFloat = 10.0, free: NonNegativeInt = 4) -> None:
        self.slope = slope
        self.free = free

    def __call__(self, updates: Tensor) -> Tensor:
        """1, or the fractions."""
        shares: Tensor = 1 / (1 + self.slope * (updates - self.free).clamp(min=0))
        return shares


class Flight(NamedTuple):
    """The work of one client, from the model that it receives to its upload; the order is that of the arrivals.

    Attributes:
        total: When its upload arrives, in simulated seconds.
        client: The client's id; of arrivals at one instant the lower one is first.
        compute: The same time without communication: that of the longest chain of clients which waited for each other.
        seconds: Its computation time.
        began: Updates of the server before it began: the version of the model that it received.
        fails: Whether its upload never arrives.
    """

    total: float
    client: int
    compute: float
    seconds: float
    began: int
    fails: bool


class ServerUpdate(NamedTuple):
    """One update of the server.

    Attributes:
        uploads: The flights whose uploads it takes, in the order of their arrival.
        dropped: Those since the last update whose uploads did not arrive, or came too late.
        compute: When it happens, in simulated seconds without communication.
        total: The same with communication.
        held: Versions with which clients in flight began whose uploads can still count, rising.
        heard: Share of the clients of which an upload has counted so far.
    """

    uploads: list[Flight]
    dropped: list[Flight]
    compute: float
    total: float
    held: list[int]
    heard: float


class Asynchronous(Participation):
    """Clients that do not wait for each other: the server takes a step whenever some uploads have arrived.

    Rule, where a round is an update of the server; s is the ``staleness`` function, and b_i is the model with which
    client i began, the newest one a_i updates ago:

        ``pool_size`` clients train at the same time, each from the newest model
        when one uploads, another begins, drawn from those that neither train nor wait
        when ``buffer`` uploads have arrived:
            x_i = x + s(a_i) * (trained_i - b_i)       # uploads: changes
            x_i = x + s(a_i) * (trained_i - x)         # uploads: models
            x   = x - server_lr * (x - sum_i weight_i * x_i)

    FedBuff adds changes. FedAsync mixes models with a ``buffer`` of 1, and its alpha is the server's rate. Statistics
    of BatchNorm are mixed by both. Where nobody else is free a client waits for the update, so with ``pool_size`` and
    ``buffer`` equal to the number of clients all rounds are synchronous. Uploads that arrive at one instant are all
    taken before other clients begin.

    An upload is dropped if its client drops out, or is too stale. Another client begins when it would have arrived, and
    what the client keeps stays as it was. Otherwise this moves with the upload. Local learning rates are those of the
    update that takes an upload.

    Paper: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (FedBuff), AISTATS 2022,
    arXiv:2106.06639, Algorithm 1; Xie, Koyejo, Gupta, "Asynchronous Federated Optimization" (FedAsync), 2019,
    arXiv:1903.03934, Algorithm 1.

    Differs: FedAsync's server says when a client begins; here one begins whenever another one has uploaded. Its clients
    are pulled to the model that they began with, which is FedProx. The papers weigh all uploads alike, which is
    ``model.weighting: uniform``.

    Args:
        pool_size: Number of clients that train at the same time, the papers' concurrency. Default: all.
        buffer: Number of uploads for an update.
        uploads: What an upload means to a server whose model has moved on: the client's ``changes``, or its ``models``.
        staleness: How much a stale upload counts. Default: ``Polynomial``.
        max_staleness: Most updates of the server from a client's beginning to its upload; a staler one is dropped.
            Default: any.
        dropout: Probability that a client fails before it has uploaded, below 1.
    """

    def __init__(
        self,
        pool_size: PositiveInt | None = None,
        buffer: PositiveInt = 10,
        uploads: Literal["changes", "models"] = "changes",
        staleness: Staleness | None = None,
        max_staleness: NonNegativeInt | None = None,
        dropout: ClosedUnitInterval = 0.0,
    ) -> None:
        super().__init__(pool_size, dropout)
        self.buffer = buffer
        self.uploads = uploads
        self.staleness = staleness
        self.max_staleness = max_staleness
        if dropout == 1:
            raise PflError("data.participation.dropout: 1 is not possible with Asynchronous; allowed: below 1")
        self._replayed: tuple[tuple[Any, ...], int, Iterator[ServerUpdate]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the updates that were replayed: what makes them cannot be copied."""
        return {**vars(self), "_replayed": None}

    def check(self, num_clients: int) -> None:
        """Check the numbers of clients.

        Raises:
            PflError: If more train at the same time than there are, or fewer than fill the buffer.
        """
        super().check(num_clients)
        at_once = self.pool_size or num_clients
        if self.buffer > at_once:
            raise PflError(
                f"data.participation.buffer: {self.buffer} is not possible; allowed: 1 to {at_once}, the number of "
                "clients that train at the same time"
            )

    @property
    def can_drop(self) -> bool:
        """Whether uploads can be dropped."""
        return self.dropout > 0 or self.max_staleness is not None

    def shares(self, staleness: Tensor) -> Tensor:
        """How much uploads count, given the updates since their clients began, float64 ``[uploads]`` both."""
        return (self.staleness or Polynomial())(staleness)

    def update(
        self, index: int, seed: int, num_clients: int, times: Callable[[int], Times], communication_time: float
    ) -> ServerUpdate:
        """An update of the server; a pure function of the arguments and options.

        Updates are found one after the other, so that one which does not follow the last one asked for takes the time
        of all before it: 0.1 to 0.5 s for 1,000 updates of 10 uploads each from 10,000 clients.

        Args:
            index: Updates completed before this one.
            seed: Seed of the experiment.
            num_clients: Number of clients that can train.
            times: Computation time of every client that begins after so many updates, in simulated seconds.
            communication_time: Simulated seconds of communication of each flight.
        """
        key = seed, num_clients, times, communication_time
        if self._replayed is None or self._replayed[0] != key or self._replayed[1] > index:
            self._replayed = key, 0, self._updates(seed, num_clients, times, communication_time)
        _, done, updates = self._replayed
        for _ in range(done, index):
            next(updates)
        self._replayed = key, index + 1, updates
        return next(updates)

    def _updates(
        self, seed: int, num_clients: int, times: Callable[[int], Times], communication_time: float
    ) -> Iterator[ServerUpdate]:
        """All updates, from the first one on; arguments as for ``update``."""
        draw = random.Random(seed_of(seed, "asynchronous"))
        idle = list(range(num_clients))
        heard: set[int] = set()
        flying: list[Flight] = []
        uploads: list[Flight] = []
        dropped: list[Flight] = []
        instant = 0.0
        compute = 0.0
        version = 0
        seconds = times(0)
        free = [0.0] * (self.pool_size or num_clients)  # places to train, and the compute time at which each is free
        while True:
            while free and idle:
                place = draw.randrange(len(idle))
                client = idle[place]
                idle[place] = idle[-1]
                idle.pop()
                begins = max(free.pop(), compute)
                needs = float(seconds[client])
                arrives = instant + (needs + communication_time)
                fails = draw.random() < self.dropout
                heappush(flying, Flight(arrives, client, begins + needs, needs, version, fails))
            instant = flying[0].total
            while flying and flying[0].total == instant:
                flight = heappop(flying)
                free.append(flight.compute)
                if flight.fails or not self._counts(flight, version):
                    dropped.append(flight)
                    idle.append(flight.client)
                    continue
                uploads.append(flight)
                if len(uploads) == self.buffer:
                    compute = max(compute, *(upload.compute for upload in uploads))
                    clients = [upload.client for upload in uploads]
                    heard.update(clients)
                    version += 1
                    held = {later.began for later in flying if not later.fails and self._counts(later, version)}
                    yield ServerUpdate(uploads, dropped, compute, instant, sorted(held), len(heard) / num_clients)
                    idle += clients
                    uploads = []
                    dropped = []
                    seconds = times(version)

    def _counts(self, flight: Flight, version: int) -> bool:
        """Whether an upload that arrives when the model has this version is not too stale."""
        return self.max_staleness is None or version - flight.began <= self.max_staleness
