from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from pfl_lightning.bounds import ROUNDING, ClosedUnitInterval, NonNegativeInt
from pfl_lightning.errors import number_of
from pfl_lightning.objects import constructor_arguments
from pfl_lightning.seeding import random_bits


class Attackers:
    """Clients that attack, the same ones in all rounds; those that are drawn follow from the seed of the run.

    Args:
        share: Share of the clients that attack, rounded down to whole clients, among all that can train.
        clients: Their names or numbers, in place of a share.
        first_round: The round that they begin with, from 0; until then they are as others.

    Attributes:
        init_args: What it was made with, by name.
    """

    def __init__(
        self,
        share: ClosedUnitInterval = 0.2,
        clients: Sequence[str | int] | None = None,
        first_round: NonNegativeInt = 0,
    ) -> None:
        super().__init__()
        self.init_args = constructor_arguments(Attackers)
        self.share = share
        self.clients = clients
        self.first_round = first_round
        self.numbers = None if clients is None else [*clients]  # until their names are known

    def find(self, names: Sequence[str], count: int, option: str) -> None:
        """Look up the clients by their names.

        Args:
            names: The data's names of the clients, in the order of their numbers; if there are none, they are numbers.
            count: Number of clients that can train.
            option: What an error begins with.

        Raises:
            PflError: If there is no such client.
        """
        if self.clients is not None:
            every = names[:count] or [str(number) for number in range(count)]
            numbers = {name: number for number, name in enumerate(every)}
            self.numbers = [number_of(str(client), numbers, option) for client in self.clients]

    def among(self, seed: int, count: int) -> Tensor:
        """Whether each client attacks, ``[clients]``.

        Args:
            seed: Seed of the run.
            count: Number of clients that can train.
        """
        if self.numbers is None:
            return drawn(seed, count, float(self.share))
        return torch.isin(torch.arange(count), torch.tensor(self.numbers, dtype=torch.int64))


@cache
def drawn(seed: int, count: int, share: float) -> Tensor:
    """Whether each client of a run attacks, ``[clients]``, if a share of them does; with more there are others, too."""
    order = random_bits((seed, "attackers"), torch.arange(count), 1)[:, 0].argsort()
    attacks = torch.zeros(count, dtype=torch.bool)
    attacks[order[: int(share * count + ROUNDING)]] = True
    return attacks
