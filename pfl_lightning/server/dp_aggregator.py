from functools import cache

import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.bounds import NonNegativeFloat, OpenUnitInterval, PositiveFloat
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.server.aggregator import Aggregator, Upload, WeightedSum
from pfl_lightning.server.secure_aggregator import SecureAggregator
from pfl_lightning.tree import Tree, wide

SENSITIVITY = 2  # of the sum, in clipping norms, to the replacement of a client
# orders of the Renyi divergences; few clients of many have the smallest bound at a large one, and time grows with it
ORDERS = (*(1 + tenths / 10 for tenths in range(1, 100)), *sorted({round(11 * 1.06**power) for power in range(102)}))


class DPAggregator(Aggregator):
    """Sums uploads with differential privacy for each client: clips the updates and adds noise to their sum.

    Rule of a sum over n uploads with equal weights; x is what clients received, and the norm is that of all tensors:

        update_i = upload_i - x
        update_i = update_i * min(1, clip_norm / |update_i|)
        result   = x + (sum_i update_i + noise_multiplier * clip_norm * N(0, I)) / n

    The result then reveals little about whether one client, with all its samples, was replaced by another: that moves
    the sum by at most ``2 * clip_norm``. The budget that this spends, epsilon at ``delta``, is accumulated over the
    rounds by Renyi differential privacy for samples of fixed size without replacement, and logged as
    ``privacy/epsilon``.

    This protects what the server releases, the shared model; what clients keep never leaves them. What a simulation
    logs, such as ``train/loss``, and the models that it evaluates are not protected. All seeds follow from the seed of
    the run, so this simulates the noise and hides nothing.

    Paper: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
    arXiv:1710.06963, Algorithm 1 with flat clipping. Accountant: Wang, Balle, Kasiviswanathan, "Subsampled Renyi
    Differential Privacy and Analytical Moments Accountant", AISTATS 2019, arXiv:1808.00087, by dp-accounting.

    Differs: the paper's clients take part independently of each other; here each round has the same number of them.

    Args:
        clip_norm: Largest norm of a client's update, over all shared tensors.
        noise_multiplier: Standard deviation of the noise on the sum, in clipping norms; 0 for no noise and no privacy.
        delta: Probability that the guarantee may fail; well below one over the number of clients.
        secure: Whether to use secure sums, so that the server sees only the sum (``SecureAggregator``).
    """

    hides = True

    def __init__(
        self,
        clip_norm: PositiveFloat = 1.0,
        noise_multiplier: NonNegativeFloat = 1.0,
        delta: OpenUnitInterval = 1e-5,
        secure: bool = False,
    ) -> None:
        super().__init__()
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier
        self.delta = delta
        self.secure = secure
        self.inner = SecureAggregator() if secure else Aggregator()
        self.fewest = self.inner.fewest

    def start(
        self, ids: Tensor, key: Key, limit: float | None = None, received: Tree | None = None
    ) -> "PrivateWeightedSum":
        """Start a sum; see ``Aggregator.start``. Clipped uploads are never packed."""
        if received is None:
            allowed = "allowed: SecureAggregator"
            raise PflError(f"model.aggregator: DPAggregator is not possible for other sums than of models; {allowed}")
        return PrivateWeightedSum(self, self.inner.start(ids, key, limit), received, key)

    def check_precision(self, precision: str) -> None:
        """Refuse a precision that would round the clipping away.

        Raises:
            PflError: If models are in bfloat16.
        """
        if precision == "bf16-true":
            problem = "bf16-true is not possible with DPAggregator, whose clipping it would round away"
            raise PflError(f"trainer.precision: {problem}; allowed: 32-true, 64-true, bf16-mixed")

    def spent(self, rounds: int, sample: int, clients: int) -> dict[str, float]:
        """The budget that some rounds spend, under its name in TensorBoard and ``metrics.csv``; empty without noise.

        Args:
            rounds: Rounds completed.
            sample: Clients drawn for each round.
            clients: Clients from which they are drawn.
        """
        if not self.noise_multiplier:
            return {}
        return {"privacy/epsilon": epsilon(float(self.noise_multiplier), float(self.delta), rounds, sample, clients)}


class PrivateWeightedSum(WeightedSum):
    """One private sum in progress.

    Args:
        aggregator: Where to count the sum, and how to clip.
        inner: Adds up the clipped uploads.
        received: What clients received, ``[...]`` each; only these tensors are clipped and get noise.
        key: Key of the noise.
    """

    def __init__(self, aggregator: DPAggregator, inner: WeightedSum, received: Tree, key: Key) -> None:
        super().__init__(aggregator)
        self.private = aggregator
        self.inner = inner
        self.received = received
        self.key = key
        self.heard = 0

    def encode(self, ids: Tensor, weights: Tensor, tree: Tree, sent: int | None = None) -> Upload:
        """Clip the updates of some clients; see ``WeightedSum.encode``."""
        assert torch.equal(weights, weights[:1].expand_as(weights)), "or one could move the sum more than another"
        return self.inner.encode(ids, weights, {**tree, **clipped(tree, self.received, self.private.clip_norm)})

    def add(self, ids: Tensor, upload: Upload) -> None:
        """Receive what these clients upload, ``[clients]``."""
        self.inner.add(ids, upload)
        self.heard += len(ids)

    def abstain(self, ids: Tensor) -> None:
        """Note that these participants, ``[clients]``, have nothing to add."""
        self.inner.abstain(ids)

    def drop(self, ids: Tensor) -> None:
        """Note that the uploads of these participants, ``[clients]``, will not arrive."""
        self.inner.drop(ids)

    def join(self, some_lack: bool) -> None:
        """Add up what all processes have received; see ``WeightedSum.join``."""
        self.inner.join(some_lack)
        self.heard = sum(processes.all_gather(self.heard))

    def result(self) -> Tree:
        """End the sum, add noise to the models in it, and count it."""
        total = self.inner.result()
        self.uploaded = self.inner.uploaded
        self.aggregator.count(self.uploaded)
        deviation = self.private.noise_multiplier * self.private.clip_norm / self.heard
        if deviation:
            for name in sorted(self.received.keys() & total.keys()):
                generator = torch.Generator().manual_seed(seed_of(*self.key, "noise", name))
                noise = torch.randn(total[name].shape, generator=generator, dtype=torch.float64)
                total[name] = total[name] + (deviation * noise).to(total[name], non_blocking=True)
        return total


def clipped(models: Tree, received: Tree, norm: float) -> Tree:
    """Clip the distance of models to what their clients received to a norm over all tensors.

    Args:
        models: ``[clients, ...]`` each; tensors that were not received are left out.
        received: ``[...]`` each.
        norm: Largest distance. Models within it stay as they are, bit for bit; one at no finite distance becomes what
            its client received.

    Examples:
        >>> clipped({"w": torch.tensor([[3.0, 5.0], [0.5, 1.0]])}, {"w": torch.tensor([0.0, 1.0])}, 2.5)["w"].tolist()
        [[1.5, 3.0], [0.5, 1.0]]
    """
    updates = {name: models[name] - received[name] for name in received if name in models}
    squares = [update.double().reshape(len(update), -1).square().sum(1) for update in updates.values()]
    distances = torch.stack(squares).sum(0).sqrt() if squares else torch.ones(0)
    factors = norm / distances.clamp(min=norm)
    near = factors == 1
    lost = ~distances.isfinite()
    result = {}
    for name, update in updates.items():
        moved = received[name] + wide(factors, update) * update
        moved = torch.where(wide(lost, update), received[name], moved)
        result[name] = torch.where(wide(near, update), models[name], moved).to(update)
    return result


@cache
def epsilon(noise_multiplier: float, delta: float, rounds: int, sample: int, clients: int) -> float:
    """The epsilon of some rounds of private sums at a delta, if clients may be replaced by others.

    Drawing clients never costs privacy, but the bound for it can be above that without it; the smaller one holds.

    Args:
        noise_multiplier: Standard deviation of the noise on each sum, in clipping norms, above 0.
        delta: The delta.
        rounds: Number of sums.
        sample: Clients in each, drawn without replacement.
        clients: Clients from which they are drawn.
    """
    from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    if rounds == 0:
        return 0.0
    release = GaussianDpEvent(noise_multiplier / SENSITIVITY)

    def bound(event: DpEvent) -> float:
        accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
        return float(accountant.compose(event, rounds).get_epsilon(delta))

    if sample == clients:
        return bound(release)
    return min(bound(release), bound(SampledWithoutReplacementDpEvent(clients, sample, release)))
