"""Types of the numbers in settings: finite, and no larger than 32-bit floats and products of counts can bear.

Each has in its docstring what it allows, as errors of the command line show it.
"""

from typing import Any

from jsonargparse.typing import ClosedUnitInterval as ClosedUnitInterval
from jsonargparse.typing import OpenUnitInterval as OpenUnitInterval
from jsonargparse.typing import restricted_number_type

MOST_CLIENTS = 10**7  # their times, sizes and ids fit in memory
MOST = 10**9  # of what is counted: the product of two counts fits in 64 bits
LARGEST = 1e9  # of what is measured: a 32-bit float holds products of several
ROUNDING = 1e-9  # a share times a number of clients may miss a whole number by float error


def _bounded(name: str, kind: type[int] | type[float], *limits: tuple[str, float]) -> Any:
    """A type of numbers for which all comparisons hold, such as ``(">", 0)``."""
    ranges = " and ".join(f"{sign} {at if kind is int else format(at, 'g')}" for sign, at in limits)
    return restricted_number_type(name, kind, list(limits), docstring=f"a {'whole ' * (kind is int)}number {ranges}")


PositiveInt: Any = _bounded("Count", int, (">", 0), ("<=", MOST))
NonNegativeInt: Any = _bounded("CountOrZero", int, (">=", 0), ("<=", MOST))
Clients: Any = _bounded("Clients", int, (">", 0), ("<=", MOST_CLIENTS))
NewClients: Any = _bounded("NewClients", int, (">=", 0), ("<=", MOST_CLIENTS))
Seed: Any = _bounded("Seed", int, (">=", 0), ("<", 2**32))
ValueBits: Any = _bounded("ValueBits", int, (">=", 2), ("<=", 16))
Percentile: Any = _bounded("Percentile", int, (">=", 0), ("<=", 100))
Real: Any = _bounded("Real", float, (">=", -LARGEST), ("<=", LARGEST))
PositiveFloat: Any = _bounded("Positive", float, (">", 0), ("<=", LARGEST))
NonNegativeFloat: Any = _bounded("NonNegative", float, (">=", 0), ("<=", LARGEST))
Limit: Any = _bounded("Limit", float, (">=", 1), ("<=", 2**40))
Share: Any = _bounded("Share", float, (">", 0), ("<=", 1))
ShareBelowHalf: Any = _bounded("ShareBelowHalf", float, (">=", 0), ("<", 0.5))
