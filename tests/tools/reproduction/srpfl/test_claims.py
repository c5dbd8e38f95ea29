from types import SimpleNamespace

import numpy as np
import pytest
from reproduction.srpfl import claims

from pfl_lightning.quantity import ACCURACY
from pfl_lightning.report import Curve

SECONDS = np.arange(5.0)


def curve(means, seconds=SECONDS):
    """A curve of one run that is evaluated after the rounds 0, 10, 20, 30 and 40."""
    run = SimpleNamespace(rounds=np.arange(5) * 10, means={"m": np.array(means)}, compute=seconds, quantity=ACCURACY)
    return Curve([run], "m")


SLOW = curve([0.1, 0.3, 0.5, 0.55, 0.6], 10 * SECONDS)
FAST = curve([0.1, 0.3, 0.5, 0.58, 0.6])
LATE = curve([0.1, 0.2, 0.3, 0.4, 0.58], 20 * SECONDS)


def passed(claims):
    return [claim.passed for claim in claims]


def panel(fast=FAST, slow=SLOW, **others):
    return {"FedRep": slow, "FedRep-SRPFL": fast, "LG-FedAvg": slow, "LG-SRPFL": fast, **others}


def test_the_time_ratio_is_to_95_percent_of_the_final_accuracy_of_the_method_without_doubling():
    # the fast curve is at 0.57 at its fourth evaluation, after 3 s, the slow one at its last, after 40 s; with 10 s of
    # communication these are 3 + 300 and 40 + 400
    assert claims.seconds_to_agree(FAST, SLOW, 0.0) == pytest.approx(3 / 40)
    assert claims.seconds_to_agree(FAST, SLOW, 10.0) == pytest.approx(303 / 440)


def test_claims_hold_or_fail_by_what_was_measured():
    never = curve([0.1, 0.2, 0.3, 0.3, 0.3])
    for check, wrong in (
        (claims.earlier, panel(fast=LATE)),
        (claims.earlier, panel(fast=never)),
        (claims.agree_in_the_end, panel(fast=never)),
        (claims.gain_persists, panel(fast=LATE)),
    ):
        assert all(passed(check(panel()))), check
        assert not any(passed(check(wrong))), check


def test_the_gain_shrinks_when_ratios_rise_with_the_communication_time():
    assert passed(claims.gain_shrinks_with_communication(panel())) == [True]
    assert passed(claims.gain_shrinks_with_communication(panel(fast=LATE, slow=LATE))) == [False]


def test_the_best_curve_is_best_in_the_time_that_all_have():
    better = curve([0.5, 0.9, 0.9, 0.9, 0.9])
    worse = curve([0.0, 0.1, 0.1, 0.1, 0.1])
    assert passed(claims.best_over_time(panel(FLANP=worse))) == [True]
    assert passed(claims.best_over_time(panel(FLANP=better))) == [False]


def test_the_common_models_are_the_worst_two():
    low, lower = curve([0.1] * 5), curve([0.05] * 5)
    assert passed(claims.common_models_are_worst(panel(FLANP=low, FedAvg=lower))) == [True]
    assert passed(claims.common_models_are_worst(panel(FLANP=low, FedAvg=SLOW))) == [False]


def test_stragglers_cost_time_and_doubling_softens_that():
    few, many = panel(), panel(fast=curve(FAST.means[0], 2 * SECONDS), slow=curve(SLOW.means[0], 30 * SECONDS))
    assert passed(claims.slower_with_stragglers({"10": few, "30": many})) == [True, True, True]
    assert passed(claims.slower_with_stragglers({"10": few, "30": few})) == [False, False, False]
