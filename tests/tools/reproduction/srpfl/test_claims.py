import numpy as np
import pytest
from fakes.panels import FAST, LATE, NEVER, SLOW, curve, panel, passed
from reproduction.srpfl import claims

SHRINKS = claims.gain_shrinks_with_communication


def of_seeds(*curves):
    """One curve of several seeds."""
    return curve(*(each.means[0] for each in curves), seconds=curves[0].times(0.0)[0])


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (claims.earlier, panel(fast=LATE)),
        (claims.earlier, panel(fast=NEVER)),
        (claims.agree_in_the_end, panel(fast=NEVER)),
        (claims.gain_persists, panel(fast=LATE)),
        (claims.above("FedRep-SRPFL", "FedRep"), panel()),
    ],
)
def test_claims_hold_or_fail_by_what_was_measured(check, wrong):
    assert all(passed(check(panel(slow=curve([0.1, 0.3, 0.5, 0.55, 0.59], seconds=SLOW.times(0.0)[0])))))
    assert not any(passed(check(wrong)))


def test_claims_are_evaluated_on_the_mean_over_the_seeds():
    slow = of_seeds(SLOW, SLOW, SLOW)
    mixed = of_seeds(NEVER, FAST, FAST)
    some = panel(of_seeds(FAST, FAST, FAST), slow)
    assert passed(claims.earlier(some)) == [True, True]
    assert claims.earlier(some)[0].measured == "0.07 ± 0.00"  # 3 s instead of 40
    # one seed that never arrives makes the claim fail
    assert passed(claims.earlier(panel(mixed, slow))) == [False, False]
    assert claims.earlier(panel(mixed, slow))[0].measured == "0.07 ± 0.00 (never for 1 of 3 seeds)"


def test_the_band_of_a_final_difference_is_what_the_clients_can_resolve():
    low = [0.1, 0.2, 0.3, 0.4, 0.55]
    apart, noisy = (curve(low, clients=clients) for clients in ((0.0,) * 4, (-0.1, -0.1, 0.1, 0.1)))
    assert passed(claims.agree_in_the_end(panel(fast=apart))) == [False, False]  # 5 points, no noise: within 3
    assert claims.agree_in_the_end(panel(fast=apart))[0].expected == "within 3.0"
    # the differences of 4 clients are 0.1 from their mean: a standard error of 0.1 / sqrt(3)
    assert passed(claims.agree_in_the_end(panel(fast=noisy))) == [True, True]
    assert claims.agree_in_the_end(panel(fast=noisy))[0].expected == "within 11.5 (2 standard errors)"


def test_the_gain_shrinks_when_ratios_rise_towards_1():
    # 30 rounds of 0.1 s instead of 40 of 1 s: the ratios rise from 0.075 to 0.75
    assert passed(SHRINKS(panel())) == [True, True]
    assert passed(SHRINKS(panel(fast=LATE, slow=LATE))) == [False, False]


def test_a_gain_that_is_lost_does_not_shrink():
    # 40 rounds of 0.1 s instead of 30 of 1 s: the ratio is 4 / 30 at first, and 4 / 3 in the end
    slow = curve([0.1, 0.3, 0.5, 0.6, 0.6], seconds=SLOW.times(0.0)[0])
    fast = curve([0.1, 0.3, 0.4, 0.5, 0.6])
    every_round, published = SHRINKS(panel(fast, slow))
    assert (every_round.passed, published.passed) == (False, False)
    assert every_round.measured == "0.13, 1.22 (lost), 1.32 (lost)"
    # 44 s instead of 60 s, and 404 s instead of 330 s
    assert published.measured == "0.13, 0.73, 1.22 (lost)"


def test_the_best_curve_is_best_in_the_time_that_all_have():
    better = curve([0.5, 0.9, 0.9, 0.9, 0.9])
    worse = curve([0.0, 0.1, 0.1, 0.1, 0.1])
    assert passed(claims.best_over_time(panel(FLANP=worse))) == [True]
    assert passed(claims.best_over_time(panel(FLANP=better))) == [False]


def test_the_common_models_are_the_worst_two():
    low, lower = curve([0.1] * 5), curve([0.05] * 5)
    assert passed(claims.common_models_are_worst(panel(FLANP=low, FedAvg=lower))) == [True]
    assert passed(claims.common_models_are_worst(panel(FLANP=low, FedAvg=SLOW))) == [False]


def test_a_curve_ends_above_another_on_the_mean_of_the_seeds():
    check = claims.above("LG-SRPFL", "FedRep-SRPFL")
    high, low = of_seeds(SLOW, SLOW), of_seeds(SLOW, NEVER)
    assert passed(check({"LG-SRPFL": high, "FedRep-SRPFL": low})) == [True]
    assert passed(check({"LG-SRPFL": low, "FedRep-SRPFL": high})) == [False]
    assert check({"LG-SRPFL": high, "FedRep-SRPFL": low})[0].measured == "15.0 ± 21.2"  # 0 and 30 points


def test_a_panel_without_the_lg_methods_makes_no_claims_about_them():
    two = {name: found for name, found in panel().items() if name.startswith("FedRep")}
    assert len(claims.earlier(two)) == len(claims.agree_in_the_end(two)) == 1
    assert np.all(passed(claims.earlier(two)))
