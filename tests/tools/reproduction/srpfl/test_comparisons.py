import numpy as np
import pytest
from fakes.panels import FAST, NEVER, SECONDS, SLOW, curve, panel, passed
from reproduction.claims import HOLDS
from reproduction.srpfl import comparisons
from reproduction.srpfl.comparisons import mean_seconds, slower_with_stragglers, smaller_gain

from pfl_lightning.system import TwoPopulation

SLOWER = curve(FAST.means[0], seconds=4 * SECONDS)  # 12 s until 0.57, and FAST 3 s of the 40 s of SLOW


def test_a_gain_is_smaller_if_the_time_ratio_is_larger():
    check = smaller_gain("in Fig. 3")
    assert passed(check(panel(SLOWER), panel())) == [True]
    assert check(panel(SLOWER), panel())[0].measured == "0.30 ± 0.00; 0.07 ± 0.00"
    assert passed(check(panel(), panel(SLOWER))) == [False]
    assert passed(check(panel(), panel())) == [False]
    assert passed(check(panel(), panel(NEVER))) == [False]


def test_a_gain_that_is_never_had_is_smaller_than_any_other():
    (claim,) = smaller_gain("in Fig. 3")(panel(NEVER), panel())  # 4 s of 40 and more
    assert (claim.verdict, claim.measured) == (HOLDS, "never; 0.07 ± 0.00")


def test_a_gain_is_visibly_smaller_if_the_ratio_is_much_larger():
    # 0.3 - 0.075 = 0.225
    assert passed(smaller_gain("there", 0.2)(panel(SLOWER), panel())) == [True]
    assert passed(smaller_gain("there", 0.25)(panel(SLOWER), panel())) == [False]


def test_the_time_is_the_mean_over_draws_of_the_speeds(monkeypatch):
    monkeypatch.setattr(comparisons, "DRAWS", 2)
    draws = [TwoPopulation(0.25, seed=seed).times(0, 4) for seed in range(2)]
    # 0.57 is reached after 40 rounds of all 4 clients, and after 30 rounds of the fastest
    assert mean_seconds(SLOW, np.full(2, 0.57), 0.25) == pytest.approx(40 * np.mean([d.max() for d in draws]))
    first = curve(FAST.means[0], cohort=1)
    assert mean_seconds(first, np.full(2, 0.57), 0.25) == pytest.approx(30 * np.mean([d.min() for d in draws]))
    assert np.isnan(mean_seconds(NEVER, np.full(2, 0.57), 0.25)).all()


def test_stragglers_cost_time_and_doubling_softens_that():
    usual = panel(fast=curve(FAST.means[0], cohort=1))
    assert passed(slower_with_stragglers({0.1: usual, 0.5: usual})) == [True, True, True]
    # as many stragglers in both: no claim holds
    assert passed(slower_with_stragglers({0.49999: usual, 0.5: usual})) == [False, False, False]
    # with all clients from the first round on, doubling saves nothing, and takes longer
    reverse = panel(fast=SLOW, slow=FAST)
    assert passed(slower_with_stragglers({0.1: reverse, 0.5: reverse}))[2] is False
    never = panel(fast=NEVER)
    assert passed(slower_with_stragglers({0.1: never, 0.5: never})) == [True, False, False]
    # only with few stragglers it gets there, so that it takes longer with many; how much is not known
    assert passed(slower_with_stragglers({0.1: panel(fast=SLOW), 0.5: never})) == [True, True, False]
