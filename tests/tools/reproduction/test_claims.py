import numpy as np
import pytest
from reproduction.claims import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    Claim,
    any_of,
    counted,
    deviation,
    half_width,
    paired,
    show,
    spread,
    within,
)
from scipy import stats

HIGH = np.array([2.0, 4.0])
CLEAR, UNCLEAR, REVERSED = np.array([1.0, 1.1, 1.2]), np.array([1.0, 2.0, 3.0]), np.array([-1.0, -1.1, -1.2])
NEVER = np.array([1.0, np.nan, 1.0])


def word(*differences):
    return paired("it is above", "", "", *differences).word


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([CLEAR], HOLDS),
        ([UNCLEAR], INCONCLUSIVE),
        ([REVERSED], FAILS),
        ([NEVER], FAILS),
        ([np.zeros(3)], FAILS),  # a tie
        ([np.ones(1)], INCONCLUSIVE),
        ([np.array(0.1)], HOLDS),  # a number that needs no seeds
        ([np.array(0.0)], FAILS),
        ([CLEAR, CLEAR], HOLDS),
        ([CLEAR, UNCLEAR], INCONCLUSIVE),
        ([CLEAR, UNCLEAR, REVERSED], FAILS),
    ],
    ids=str,
)
def test_all_differences_have_to_be_told_from_0(differences, expected):
    assert word(*differences) == expected


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([CLEAR], HOLDS),
        ([REVERSED, CLEAR, NEVER], HOLDS),
        ([CLEAR, 0.3 * UNCLEAR - 0.1], HOLDS),
        ([REVERSED, UNCLEAR], INCONCLUSIVE),
        ([REVERSED, np.zeros(3), NEVER], FAILS),
        ([np.ones(1), -np.ones(1)], INCONCLUSIVE),
    ],
    ids=str,
)
def test_one_of_several_differences_has_to_be_told_from_0(differences, expected):
    assert any_of("one is above", "", "", *differences).word == expected


def test_the_best_of_several_is_found_by_t_tests_at_a_share_of_the_level_and_refuted_by_plain_ones():
    generator = np.random.default_rng(0)
    for _ in range(50):
        each = generator.normal(generator.choice([-0.8, 0.5]), 0.7, (3, 5))
        tests = [stats.ttest_1samp(values, 0) for values in each]
        told = [np.sign(found.statistic) * (found.pvalue < 0.05 / (3 if found.statistic > 0 else 1)) for found in tests]
        assert any_of("", "", "", *each).word == (HOLDS if 1 in told else FAILS if told == [-1] * 3 else INCONCLUSIVE)


def test_as_many_seeds_are_asked_for_as_would_tell_the_clearest_of_several():
    steady, wide = np.array([-0.5, 1.5, 1.0, 0.5]), np.array([-9.0, 9.0, 9.0, 0.0])  # t statistics of 1.46 and 0.52
    seeds = int(
        any_of("", "", "", wide, steady).verdict.removeprefix(f"{INCONCLUSIVE}; ").removesuffix(" seeds would tell")
    )
    widths = [half_width(steady, number, 0.975) for number in (seeds, seeds - 1)]
    assert widths[0] < steady.mean() <= widths[1]


def test_a_single_difference_is_decided_by_the_paired_t_test():
    generator = np.random.default_rng(0)
    for _ in range(50):
        a, b = generator.normal(0.8, 1, (2, 4)) * [[1], [0.5]]
        found = stats.ttest_rel(a, b)
        told = found.pvalue < 0.05
        assert paired("", "", "", a - b).word == (INCONCLUSIVE if not told else HOLDS if found.statistic > 0 else FAILS)


@pytest.mark.parametrize("values", [UNCLEAR, np.array([-1.0, 3.0, 0.0, 0.5])], ids=str)
def test_as_many_seeds_as_are_asked_for_would_tell_and_one_less_would_not(values):
    verdict = paired("", "", "", CLEAR, values).verdict
    seeds = int(verdict.removeprefix(f"{INCONCLUSIVE}; ").removesuffix(" seeds would tell"))
    assert half_width(values, seeds) < abs(values.mean()) <= half_width(values, seeds - 1)


def test_one_difference_below_0_is_enough_to_fail():
    wide = np.array([-1.0, 3.0, 0.0, 0.5])  # more seeds would tell that it is above 0
    for below in (np.array([-4.0, 1.0, -2.0]), np.array([-3.0, 0.5, -2.0, -1.0])):
        for others in ([wide[: len(below)]], [np.array([-1.0, 1.0, 1e-9, 0.0])[: len(below)]]):
            verdict = paired("", "", "", *others, below).verdict
            seeds = int(verdict.removeprefix(f"{INCONCLUSIVE}; ").removesuffix(" seeds would tell"))
            widths = [half_width(below, number, 0.975) for number in (seeds, seeds - 1)]  # one of two
            assert widths[0] < abs(below.mean()) <= widths[1]


def test_one_of_many_that_is_below_0_by_chance_does_not_fail():
    below = np.array([-0.2, -0.35, -0.5])  # t statistic of -4.04; 4.30 is told of one, 7.65 of three
    steady = np.array([-0.3, -0.35, -0.4])  # of -12.1
    assert [word(below), word(0.9 * below - 0.05)] == [INCONCLUSIVE, FAILS]
    assert word(CLEAR, CLEAR, 0.9 * below - 0.05) == INCONCLUSIVE
    assert word(CLEAR, CLEAR, steady) == FAILS


def test_a_difference_near_0_asks_for_no_number_of_seeds():
    assert paired("", "", "", np.array([-1.0, 1.0])).verdict == f"{INCONCLUSIVE}; no few seeds would tell"


def test_a_band_is_left_on_either_side():
    verdicts = [word(*within(each * CLEAR, 1.5)) for each in (1, -1, 2, 3, -3)]
    assert verdicts == [HOLDS, HOLDS, INCONCLUSIVE, FAILS, FAILS]


def test_a_claim_is_shown_with_its_verdict_and_all_are_counted(capsys):
    show([Claim("1 + 1", "2", "2", HOLDS), Claim("2 + 2", "5", "4", FAILS, "4.0")])
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "+", "1", "2", "2", "holds"] in rows
    assert ["2", "+", "2", "5", "4", "fails", "4.0"] in rows
    assert rows[-1] == ["1", "holds,", "1", "fails"]
    assert counted([INCONCLUSIVE, HOLDS, HOLDS]) == "2 holds, 1 inconclusive"


def test_numbers_are_shown_with_what_they_spread_over_the_seeds():
    shown = [spread(values) for values in (HIGH, np.array(0.5), np.array([np.nan, 2.0]), np.array([np.nan]))]
    assert shown == ["3.00 ± 1.41", "0.50", "2.00 (never for 1 of 2 seeds)", "never"]
    assert (deviation(HIGH), deviation(HIGH[:1])) == (pytest.approx(2**0.5), 0.0)
