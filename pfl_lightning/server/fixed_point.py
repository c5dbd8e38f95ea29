"""Numbers as 64-bit integers, whose sums do not depend on the order."""

from math import frexp, ldexp

from torch import Tensor

from pfl_lightning.errors import PflError
from pfl_lightning.tree import wide

LIMITS = (1.0, 2.0**40)  # with a larger one, sums would be less exact than in float32


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
        self.limit, self.places = limit, 62 - exponent + (mantissa == 0.5)
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
                f"larger limit up to {LIMITS[1]:g}, or a smaller model.lr if the run diverges"
            )
        return (wide(weights, values) * values.double()).mul_(2.0**self.places).round_().long().sum(0)

    def decode(self, words: Tensor) -> Tensor:
        """The numbers that words stand for, float64, ``[...]``."""
        return words.double() * self.resolution
