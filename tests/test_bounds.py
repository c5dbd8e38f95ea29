import math

import pytest

from pfl_lightning.bounds import LARGEST, MOST, ClosedUnitInterval, NonNegativeInt, PositiveFloat, PositiveInt, Seed

NO_NUMBERS = [None, "word", "", True, [1], math.nan, "nan", math.inf, "inf", 0, -1]


@pytest.mark.parametrize("value", [*NO_NUMBERS, 2 * LARGEST, "1e31"], ids=str)
def test_a_measure_is_a_finite_number(value):
    with pytest.raises((TypeError, ValueError)):
        PositiveFloat(value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.5, "1.5", MOST + 1, 1e30], ids=str)
def test_a_count_is_whole_and_fits_in_memory(value):
    with pytest.raises((TypeError, ValueError)):
        PositiveInt(value)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (PositiveFloat, "1e-3", 0.001),
        (PositiveFloat, LARGEST, LARGEST),
        (PositiveInt, 10.0, 10),
        (PositiveInt, str(MOST), MOST),
        (NonNegativeInt, 0, 0),
        (ClosedUnitInterval, 1, 1.0),
        (Seed, 2**32 - 1, 2**32 - 1),
    ],
)
def test_what_is_within_the_limits_keeps_its_value(kind, given, expected):
    number = kind(given)
    assert number == expected
    assert isinstance(number, type(expected))
