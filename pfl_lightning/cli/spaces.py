"""What a search tries: ranges of numbers, and choices."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from yaml import YAMLError

from pfl_lightning.cli.planning import load_yaml, values_by_key
from pfl_lightning.errors import PflError

RANGE = re.compile(r"(log:)?([^,:]+?)\.\.([^,:]+)")
DIGITS = 4  # of a real number that is tried: folders are named by it


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``: whole ones if both ends are, and on a logarithmic scale if ``log``."""

    low: float
    high: float
    log: bool

    def __str__(self) -> str:
        return f"{'log:' * self.log}{self.low}..{self.high}"

    def word(self, value: float) -> str:
        """A number of this range as the command line takes it.

        Examples:
            >>> Range(0.001, 1.0, log=True).word(0.0123456), Range(1, 9, log=False).word(3)
            ('0.01235', '3')
        """
        return (
            str(value) if isinstance(value, int) else repr(min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high))
        )


Space = Mapping[str, Range | list[str]]


def space_of(search: Sequence[str]) -> Space:
    """What a search tries for each setting.

    Args:
        search: Settings with a range or choices each, such as ``model.lr=log:0.001..1`` and ``model.epochs=1,2,5``.

    Raises:
        PflError: If a range or choice is not possible, or a setting is listed twice.

    Examples:
        >>> space_of(["model.lr=log:0.001..1", "model.epochs=1,2,5"])
        {'model.lr': Range(low=0.001, high=1.0, log=True), 'model.epochs': ['1', '2', '5']}
    """
    choices = values_by_key(search, "search")
    texts = {key: text for key, _, text in (word.partition("=") for word in search)}
    return {key: _range(key, texts[key]) if ".." in texts[key] else choices[key] for key in choices}


def candidates(space: Space) -> dict[str, list[str]]:
    """The ends of each range, and all choices, as the command line takes them."""
    return {
        key: [values.word(values.low), values.word(values.high)] if isinstance(values, Range) else values
        for key, values in space.items()
    }


def words(space: Space, drawn: Mapping[str, Any]) -> dict[str, str]:
    """What was drawn from a space, as the command line takes it."""
    return {key: v.word(drawn[key]) if isinstance(v, Range) else drawn[key] for key, v in space.items()}


def distributions(space: Space) -> dict[str, Any]:
    """The same space for Optuna."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def of(values: Range | list[str]) -> Any:
        if not isinstance(values, Range):
            return CategoricalDistribution(values)
        kind: Any = IntDistribution if isinstance(values.low, int) else FloatDistribution
        return kind(values.low, values.high, log=values.log)

    return {key: of(values) for key, values in space.items()}


def _range(key: str, text: str) -> Range:
    match = RANGE.fullmatch(text)
    low, high = (_number(end) for end in match.group(2, 3)) if match else (None, None)
    if match and low is not None and high is not None and (0 < low < high if match[1] else low < high):
        if not (isinstance(low, int) and isinstance(high, int)):
            low, high = float(low), float(high)
        return Range(low, high, bool(match[1]))
    raise PflError(
        f"search: {key}={text} is not possible; allowed: low..high, or log:low..high from above 0, such as "
        "model.lr=log:0.001..1"
    )


def _number(text: str) -> float | None:
    try:
        value = load_yaml(text)
    except YAMLError:
        return None
    return value if type(value) in (int, float) and abs(value) < float("inf") else None
