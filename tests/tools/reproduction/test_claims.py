import numpy as np
import pytest
from fakes.panels import passed
from reproduction.claims import Claim, better, deviation, listed, show, trend

HIGH, LOW = np.array([2.0, 4.0]), np.array([1.0, 3.0])


def test_a_claim_that_fails_stands_out(capsys):
    show([Claim("1 + 1", "2", "2", True), Claim("2 + 2", "5", "4", False)])
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "+", "1", "2", "2", "yes"] in rows
    assert ["2", "+", "2", "5", "4", "NO"] in rows


def test_trends_and_comparisons_are_those_of_the_means_and_have_no_ties():
    values = ([HIGH, LOW], [LOW, HIGH], [LOW, LOW], [HIGH, np.array([1.0, np.nan])])
    assert passed(trend("t", each) for each in values) == [True, False, False, False]
    assert passed(trend("t", each, "rises") for each in values) == [False, True, False, False]
    assert passed(better("b", *each, "") for each in values) == [True, False, False, False]


def test_numbers_are_shown_with_what_they_spread_over_the_seeds():
    assert listed([HIGH, 0.5, np.array([np.nan, 2.0])]) == "3.00 ± 1.41, 0.50, 2.00 (never for 1 of 2 seeds)"
    assert listed([np.array([np.nan])]) == "never"
    assert (deviation(HIGH), deviation(HIGH[:1])) == (pytest.approx(2**0.5), 0.0)
