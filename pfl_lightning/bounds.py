"""Types of the numbers in settings: finite, and no larger than 32-bit floats and products of counts can bear.

The command line refuses other values, and null, in a line that says what is allowed.
"""

import operator
from typing import Any

from jsonargparse.typing import register_type

MOST_CLIENTS = 10**7  # their times, sizes and ids fit in memory
MOST = 10**9  # of what is counted: the product of two counts fits in 64 bits
LARGEST = 1e9  # of what is measured: a 32-bit float holds products of several
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def bounded(name: str, kind: type[int] | type[float], *limits: tuple[str, float]) -> Any:
    """Make a type of numbers within limits.

    Args:
        name: Name of the type, as ``--help`` shows it.
        kind: Whole or real numbers.
        limits: Comparisons that hold for all of them, such as ``(">", 0)``.

    Returns:
        A subclass of ``kind``. Its constructor raises a ValueError for other values, and for what is no number.
    """
    ranges = " and ".join(f"v{sign}{at if kind is int else format(at, 'g')}" for sign, at in limits)
    allowed = f"a {'whole ' * (kind is int)}number v with {ranges}"

    def new(cls: Any, value: Any) -> Any:
        number = _number(value, kind)
        if number is None or not all(_COMPARE[sign](number, at) for sign, at in limits):
            raise ValueError(f"{_shown(value)} is not possible; allowed: {allowed}")
        return kind.__new__(cls, number)

    created = type(name, (kind,), {"__new__": new, "__doc__": allowed})
    register_type(created, kind)
    return created


def _number(value: Any, kind: type[int] | type[float]) -> float | None:
    """A value as a number of a kind; None if it is not one."""
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):  # null, a word, infinity
        return None
    if isinstance(value, bool):
        return None
    return None if isinstance(value, float) and number != value else number  # a fraction is no whole number


def _shown(value: Any) -> str:
    """A value as the user may have written it: words in quotes, numbers not."""
    is_word = isinstance(value, str) and _number(value, float) is None
    return "null" if value is None else repr(value) if is_word else str(value)


PositiveInt: Any = bounded("PositiveInt", int, (">", 0), ("<=", MOST))
NonNegativeInt: Any = bounded("NonNegativeInt", int, (">=", 0), ("<=", MOST))
Clients: Any = bounded("Clients", int, (">", 0), ("<=", MOST_CLIENTS))
NewClients: Any = bounded("NewClients", int, (">=", 0), ("<=", MOST_CLIENTS))
Seed: Any = bounded("Seed", int, (">=", 0), ("<", 2**32))
Percentile: Any = bounded("Percentile", int, (">=", 0), ("<=", 100))
Real: Any = bounded("Real", float, (">=", -LARGEST), ("<=", LARGEST))
PositiveFloat: Any = bounded("PositiveFloat", float, (">", 0), ("<=", LARGEST))
NonNegativeFloat: Any = bounded("NonNegativeFloat", float, (">=", 0), ("<=", LARGEST))
Limit: Any = bounded("Limit", float, (">=", 1), ("<=", 2**40))
Share: Any = bounded("Share", float, (">", 0), ("<=", 1))
ClosedUnitInterval: Any = bounded("ClosedUnitInterval", float, (">=", 0), ("<=", 1))
OpenUnitInterval: Any = bounded("OpenUnitInterval", float, (">", 0), ("<", 1))
