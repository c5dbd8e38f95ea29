import numpy as np
import pytest
from fakes.panels import FAST, NEVER, SECONDS, SLOW, curve, panel
from reproduction.srpfl import measures

PAIR = ("FedRep-SRPFL", "FedRep")


def test_the_time_ratio_is_to_95_percent_of_the_final_accuracy_of_the_method_without_doubling():
    # the fast curve is at 0.57 at its fourth evaluation, after 3 s, the slow one at its last, after 40 s; with 10 s of
    # communication these are 3 + 300 and 40 + 400
    assert measures.time_ratios(panel(), PAIR) == pytest.approx(3 / 40)
    assert measures.time_ratios(panel(), PAIR, 10.0) == pytest.approx(303 / 440)


def test_every_seed_has_the_accuracy_of_its_own_to_reach():
    slow = curve([0.1, 0.3, 0.5, 0.55, 0.6], [0.1, 0.2, 0.2, 0.2, 0.2], seconds=10 * SECONDS)
    fast = curve([0.1, 0.3, 0.5, 0.58, 0.6], [0.1, 0.2, 0.2, 0.2, 0.2])
    # the second seed is to reach 0.19, which both do at their second evaluation
    assert measures.time_ratios(panel(fast, slow), PAIR) == pytest.approx([3 / 40, 1 / 10])


def test_a_seed_that_never_arrives_has_no_ratio_and_is_said():
    both, slow = curve(FAST.means[0], NEVER.means[0]), curve(*2 * [SLOW.means[0]], seconds=10 * SECONDS)
    ratios = measures.time_ratios(panel(both, slow), PAIR)
    assert np.isnan(ratios).tolist() == [False, True]
    assert measures.shown_ratio(ratios) == "0.07 (never for 1 of 2 seeds)"


def test_an_accuracy_that_both_have_before_the_first_round_is_no_gain():
    both = curve([0.59, 0.3, 0.5, 0.55, 0.6])
    assert measures.time_ratios(panel(both, both), PAIR) == pytest.approx(1.0)


def test_a_gain_that_is_lost_is_said():
    assert measures.shown_ratio(np.array([1.1, 1.3])) == "1.20 ± 0.14 (lost)"
    assert measures.shown_ratio(np.array([0.4, 0.4])) == "0.40 ± 0.00"
