import warnings
from typing import Literal

import numpy as np
from numpy.random import Generator

from pfl_lightning.bounds import PositiveFloat, PositiveInt
from pfl_lightning.data.partitions.by_class import ClassPartition, Shares
from pfl_lightning.data.partitions.partition import Indices, Population
from pfl_lightning.errors import PflError

TRIES = 100


class Dirichlet(ClassPartition):
    """Splits every class by Dirichlet proportions, as in FedMA; DePRL's partition.

    A client that already has its fair number of samples gets nothing from later classes, which limits the sizes. The
    draw is repeated until every client's shares amount to ``min_size`` samples, at most 100 times
    (docs/evidence/derivations.md, Dirichlet draws).

    Paper: Wang et al., "Federated Learning with Matched Averaging", ICLR 2020, arXiv:2002.06440; DePRL,
    arXiv:2312.10815.

    Args:
        alpha: Concentration; a smaller value gives each client fewer classes.
        min_size: Minimum number of training samples per client, including validation samples, and test samples if
            ``data.test_fraction`` takes them from these.
        repair: If clients still have too few, also by rounding, or no test sample: ``move`` samples of the largest
            clients to them, with a warning that counts them, or ``refuse``, so that all that a client holds is by the
            law.
    """

    def __init__(
        self, alpha: PositiveFloat = 0.3, min_size: PositiveInt = 10, repair: Literal["move", "refuse"] = "move"
    ) -> None:
        self.alpha = alpha
        self.min_size = min_size
        self.repair = repair

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Balanced Dirichlet proportions of each class."""
        return _balanced(class_sizes, population.num_clients, self.alpha, self.min_size, rng)

    def report_repair(self, shortage: str) -> None:
        """Warn of samples that were moved.

        Raises:
            PflError: If that is to be refused.
        """
        if self.repair == "refuse":
            raise PflError(
                f"data.partition.repair is refuse, but {shortage}; set move, or a larger "
                "data.partition.alpha, a smaller data.partition.min_size, fewer clients or another data.partition_seed"
            )
        super().report_repair(shortage)


class GroupedDirichlet(ClassPartition):
    """Splits every class among groups of clients, then by Dirichlet proportions within a group; FedMac's CINIC-10.

    A group's draw is repeated until each of its clients has half of its fair number of samples, at most 100 times; a
    warning counts the clients that still have less.

    Paper: Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning" (FedDF), NeurIPS 2020,
    arXiv:2006.07242; FedMac, arXiv:2107.05330.

    Args:
        alpha: Concentration; a smaller value gives each client fewer classes.
        group_size: Maximum number of clients in a group; there are as few groups as possible, of nearly equal size.
    """

    def __init__(self, alpha: PositiveFloat = 0.5, group_size: PositiveInt = 10) -> None:
        self.alpha = alpha
        self.group_size = group_size

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Balanced Dirichlet proportions within each group's part of each class."""
        clients = population.num_clients
        half = class_sizes.sum() / clients / 2
        shares = np.zeros((len(class_sizes), clients))
        for group in np.array_split(rng.permutation(clients), -(-clients // self.group_size)):
            part = len(group) / clients
            sizes = part * class_sizes.astype(np.float64)
            shares[:, group] = part * _balanced(sizes, len(group), self.alpha, half, rng)
        if small := int((class_sizes @ shares < half).sum()):
            shortage = f"{small} of {clients} clients have less than half of the fair number of training samples"
            warnings.warn(f"data.partition: {shortage} after {TRIES} draws", stacklevel=2)
        return shares


class EqualDirichlet(ClassPartition):
    """Clients of equal size; the classes of each follow its own prior, drawn from a Dirichlet distribution.

    In each of ten turns, every client draws a tenth of its samples by its prior, among classes that are not used up.

    Paper: Dai et al., "DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse
    Training", ICML 2022, arXiv:2206.00187, and its authors' code.

    Differs: DisPFL's clients share test samples; here no two clients do.

    Args:
        alpha: Concentration; a smaller value gives each client fewer classes.
    """

    TURNS = 10

    def __init__(self, alpha: PositiveFloat = 0.3) -> None:
        self.alpha = alpha

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Shares that give all clients the same number of samples, up to one."""
        clients = population.num_clients
        remaining = class_sizes.copy()
        priors = rng.dirichlet(np.full(len(class_sizes), self.alpha), clients)
        sizes = np.diff(np.arange(clients + 1) * class_sizes.sum() // clients)
        counts = np.zeros((len(class_sizes), clients), dtype=np.int64)
        for turn in range(1, self.TURNS + 1):
            for client in rng.permutation(clients):
                while (missing := sizes[client] * turn // self.TURNS - counts[:, client].sum()) > 0:
                    prior = priors[client] * (remaining > 0) + 1e-12 * remaining  # a prior can be used up
                    drawn = np.minimum(rng.multinomial(missing, prior / prior.sum()), remaining)
                    counts[:, client] += drawn
                    remaining -= drawn
        shares = counts / np.maximum(class_sizes, 1)[:, None]
        shares[class_sizes == 0] = 1 / clients
        return shares


def _balanced(class_sizes: Shares | Indices, clients: int, alpha: float, min_size: float, rng: Generator) -> Shares:
    """Draw shares until every client has ``min_size`` samples, or ``TRIES`` times."""
    for _ in range(TRIES):
        shares = _draw(class_sizes, clients, alpha, rng)
        if (class_sizes @ shares).min() >= min_size:
            break
    return shares


def _draw(class_sizes: Shares | Indices, clients: int, alpha: float, rng: Generator) -> Shares:
    shares = np.zeros((len(class_sizes), clients))
    sizes = np.zeros(clients)
    for label, size in enumerate(class_sizes):
        hungry = sizes < class_sizes.sum() / clients
        hungry |= not hungry.any()  # only if the remaining classes have no samples
        proportions = rng.dirichlet(np.full(clients, alpha)) * hungry
        if not proportions.sum():  # a tiny alpha can put all its weight on one full client
            proportions = hungry / 1.0
        shares[label] = proportions / proportions.sum()
        sizes += size * shares[label]
    return shares
