from math import frexp, ldexp

import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.bounds import Limit
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key
from pfl_lightning.server.aggregator import Aggregator, Upload, WeightedSum
from pfl_lightning.server.masks import Masks
from pfl_lightning.server.messages import nbytes
from pfl_lightning.tree import Tree, wide, zeros_like

LIMITS = (1.0, 2.0**40)  # with a larger one, sums would be less exact than in float32
WEIGHT = "sums/weight"  # entry of every sum, for the sum of the weights
TOLERANCE = 2.0**-7  # rounded weights can sum to a little more than 1; a word can hold twice as much


class FixedPoint:
    """Fixed-point numbers of 62 bits, with as many binary places as the limit allows.

    A weighted sum of values within the limit, with weights that sum to at most 1, is then at most 2^62 in size, half of
    what a word can hold. Rounding moves it by at most half a ``resolution`` for each client
    (docs/evidence/derivations.md, Secure sums).

    Args:
        limit: Largest absolute value that can be encoded.

    Attributes:
        places: Binary places, the largest f with ``limit * 2^f <= 2^62``.
        resolution: ``2^-places``.

    Raises:
        PflError: If the limit is not within ``LIMITS``.
    """

    def __init__(self, limit: float) -> None:
        if not LIMITS[0] <= limit <= LIMITS[1]:
            allowed = f"{LIMITS[0]:g} to {LIMITS[1]:g}"
            raise PflError(f"model.aggregator.limit: {limit:g} is not possible; allowed: {allowed}")
        mantissa, exponent = frexp(limit)
        self.limit = limit
        self.places = 62 - exponent + (mantissa == 0.5)
        self.resolution = ldexp(1.0, -self.places)

    def encode(self, weights: Tensor, values: Tensor) -> Tensor:
        """Weighted sum of values, as words.

        Args:
            weights: Float64 in [0, 1], ``[clients]``.
            values: ``[clients, ...]``.

        Returns:
            ``sum_k round(weights_k * values_k * 2^places)``, int64, ``[...]``.

        Raises:
            PflError: If a value is beyond the limit, or not a number.
        """
        largest = float(values.abs().max())
        if not largest <= self.limit:
            raise PflError(
                f"model.aggregator.limit: {self.limit:g} is not possible with an upload of {largest:g}; allowed: a "
                f"larger limit up to {LIMITS[1]:g}, or a smaller model.local.lr if the run diverges"
            )
        return (wide(weights, values) * values.double()).mul_(2.0**self.places).round_().long().sum(0)

    def decode(self, words: Tensor) -> Tensor:
        """The numbers that words stand for, float64, ``[...]``."""
        return words.double() * self.resolution


WEIGHTS = FixedPoint(2.0**31)  # sums of up to 2^32 weights do not wrap


class SecureAggregator(Aggregator):
    """Sums uploads by secure aggregation: the server only sees masked uploads, which look random, and learns their sum.

    Rule of a sum; ``f`` binary places keep every sum within 64 bits, and ``mask_i`` are random words that cancel:

        upload_i = round(2^f * weight_i * value_i) + mask_i  mod 2^64
        result   = 2^-f * (sum_i upload_i                    mod 2^64)

    Results are exact sums of rounded values, so they do not depend on the order of the clients, the chunks or the
    masks. The sum of the weights is computed in the same way and checked. A sum needs at least two uploads; a
    participant with nothing to add uploads masked zeros. If an upload is dropped, the server asks the other clients for
    their shares of that client's seeds and removes its masks from their uploads, so the result is the sum over those
    that uploaded; the bytes of these shares, which do not grow with the model, are not counted.

    This simulates what a server sees, the cost and the rounding; it protects nobody, because all seeds follow from the
    seed of the run. Masks that cancel within a chunk are not drawn.

    Paper: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017; Bell et
    al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020.

    Args:
        limit: Largest absolute value in an upload, from 1 to 2^40; larger values are an error. A smaller limit rounds
            more finely; the default of 2^20 rounds to 2^-42.
        masks: Whether uploads are masked; results are the same without masks, and faster.
    """

    hides = True
    fewest = 2

    def __init__(self, limit: Limit = 2.0**20, masks: bool = True) -> None:
        super().__init__()
        self.limit = limit
        self.masks = masks
        self.code = FixedPoint(limit)

    def start(
        self, ids: Tensor, key: Key, limit: float | None = None, received: Tree | None = None
    ) -> "SecureWeightedSum":
        """Start a sum; see ``Aggregator.start``. Masked uploads are never packed."""
        if len(ids) < self.fewest:
            raise PflError(
                f"model.aggregator: {len(ids)} participant in a round is not possible with SecureAggregator, the sum "
                "would be its upload; allowed: 2 or more, see data.participation.pool_size and StageDoubling.n0"
            )
        code = self.code if limit is None else FixedPoint(limit)
        return SecureWeightedSum(self, ids, code, Masks(ids, key) if self.masks else None)


class SecureWeightedSum(WeightedSum):
    """One secure sum in progress; its parts are words that ``result`` turns into numbers.

    Args:
        aggregator: Where to count the sum.
        ids: Participants, ``[participants]``.
        code: How numbers become words.
        masks: The participants' masks; None if uploads are not masked.
    """

    def __init__(self, aggregator: Aggregator, ids: Tensor, code: FixedPoint, masks: Masks | None) -> None:
        super().__init__(aggregator)
        self.code = code
        self.masks = masks
        self.awaited = set(ids.tolist())
        self.silent = ids[:0]
        self.dropped = ids[:0]

    def encode(self, ids: Tensor, weights: Tensor, tree: Tree, sent: int | None = None) -> Upload:
        """Masked words of some clients; see ``WeightedSum.encode``.

        Raises:
            PflError: If a value is beyond the limit or not a number, or a weight is not in [0, 1].
        """
        weights = weights.double()
        if not ((weights >= 0) & (weights <= 1)).all():
            lowest, highest = weights.aminmax()
            raise PflError(
                f"model.aggregator: weights from {lowest:g} to {highest:g} are not possible; allowed: 0 to 1"
            )
        words = {name: self.code.encode(weights, stack) for name, stack in tree.items()}
        return self._hidden(ids, {**words, WEIGHT: WEIGHTS.encode(weights, torch.ones_like(weights))})

    def add(self, ids: Tensor, upload: Upload) -> None:
        """Receive the words of these clients, ``[clients]``."""
        self._receive(ids)
        super().add(ids, upload)

    def abstain(self, ids: Tensor) -> None:
        """Let these participants, ``[clients]``, upload masked zeros."""
        self._receive(ids)
        self.silent = torch.cat([self.silent, ids])

    def drop(self, ids: Tensor) -> None:
        """Recover the masks of these participants, ``[clients]``, whose uploads will not arrive."""
        self._receive(ids)
        self.dropped = torch.cat([self.dropped, ids])

    def join(self, some_lack: bool) -> None:
        """Add up the words of all processes; see ``WeightedSum.join``."""
        super().join(some_lack)
        self.awaited = set.intersection(*processes.all_gather(self.awaited))

    def result(self) -> Tree:
        """End the sum and count it; see ``WeightedSum.result``."""
        assert not self.awaited, f"participants that neither add nor abstain nor are dropped: {self.awaited}"
        zeros = zeros_like(self.total)
        super().add(self.silent, self._hidden(self.silent, zeros))
        # cancels the masks that they share with clients that have uploaded
        super().add(self.dropped, self._hidden(self.dropped, zeros)._replace(nbytes=0))
        total = super().result()
        weight = float(WEIGHTS.decode(total.pop(WEIGHT)))
        if weight > 1 + TOLERANCE:
            raise PflError(f"model.aggregator: weights with a sum of {weight:g} are not possible; allowed: at most 1")
        return {name: self.code.decode(words) for name, words in total.items()}

    def _receive(self, ids: Tensor) -> None:
        clients = set(ids.tolist())
        assert clients <= self.awaited, f"not participants, or heard before: {clients - self.awaited}"
        self.awaited -= clients

    def _hidden(self, ids: Tensor, words: Tree) -> Upload:
        return Upload(self.masks.hide(ids, words) if self.masks else words, len(ids) * nbytes(words))
