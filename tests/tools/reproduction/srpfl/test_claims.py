import numpy as np
import pytest
from fakes.panels import FAST, LATE, NEVER, SLOW, curve, panel, passed
from reproduction.claims import FAILS, HOLDS, INCONCLUSIVE
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


def test_a_seed_that_never_arrives_makes_the_claim_fail():
    slow = of_seeds(SLOW, SLOW, SLOW)
    mixed = of_seeds(NEVER, FAST, FAST)
    some = panel(of_seeds(FAST, FAST, FAST), slow)
    assert passed(claims.earlier(some)) == [True, True]
    assert claims.earlier(some)[0].measured == "0.07 ± 0.00"  # 3 s instead of 40
    assert passed(claims.earlier(panel(mixed, slow))) == [False, False]
    assert claims.earlier(panel(mixed, slow))[0].measured == "0.07 ± 0.00 (never for 1 of 3 seeds)"


def test_final_accuracies_agree_within_3_points_or_it_cannot_be_told():
    ends = [curve(*([0.1, 0.2, 0.3, 0.4, end] for end in seeds)) for seeds in ((0.58, 0.59), (0.55, 0.55), (0.5, 0.6))]
    slow = curve(*2 * [SLOW.means[0]])
    verdicts = [claims.agree_in_the_end(panel(fast, slow))[0].word for fast in ends]
    assert verdicts == [INCONCLUSIVE, FAILS, INCONCLUSIVE]  # 1.5 ± 0.7 points, 5, and 5 ± 7
    assert claims.agree_in_the_end(panel(slow, slow))[0][2:4] == ("within 3.0", HOLDS)


def test_the_gain_shrinks_when_ratios_rise_towards_1():
    # 30 rounds of 0.1 s instead of 40 of 1 s: the ratios rise from 0.075 to 0.75
    assert passed(SHRINKS(panel())) == [True, True]
    assert passed(SHRINKS(panel(fast=LATE, slow=LATE))) == [False, False]


def test_a_gain_that_is_lost_does_not_shrink():
    # 40 rounds of 0.1 s instead of 30 of 1 s: the ratio is 4 / 30 at first, and 4 / 3 in the end
    slow = curve([0.1, 0.3, 0.5, 0.6, 0.6], seconds=SLOW.times(0.0)[0])
    fast = curve([0.1, 0.3, 0.4, 0.5, 0.6])
    every_round, published = SHRINKS(panel(fast, slow))
    assert passed([every_round, published]) == [False, False]
    assert every_round.measured == "0.13 ± 0.00, 1.22 ± 0.00 (lost), 1.32 ± 0.00 (lost)"
    # 4 + 112 s instead of 30 + 84 s, and 4 + 1120 s instead of 30 + 840 s
    assert published.measured == "0.13 ± 0.00, 1.02 ± 0.00 (lost), 1.29 ± 0.00 (lost)"


def test_the_published_figure_8_charges_each_evaluation():
    # 3 s of 30 rounds instead of 40 s of 40: with 17 / 150 s a round for each second of communication
    (claim,) = claims.gain_persists(panel())
    assert claim.measured == ", ".join(f"{(3 + 30 * c) / (40 + 40 * c):.2f} ± 0.00" for c in (0, 17 / 15, 170 / 15))


def test_the_best_curve_is_best_in_the_time_that_all_have():
    better = curve([0.5, 0.9, 0.9, 0.9, 0.9])
    worse = curve([0.0, 0.1, 0.1, 0.1, 0.1])
    assert passed(claims.best_over_time(panel(FLANP=worse))) == [True]
    assert passed(claims.best_over_time(panel(FLANP=better))) == [False]


def test_the_common_models_are_the_worst_two():
    low, lower = curve([0.1] * 5), curve([0.05] * 5)
    assert passed(claims.common_models_are_worst(panel(FLANP=low, FedAvg=lower))) == [True]
    assert passed(claims.common_models_are_worst(panel(FLANP=low, FedAvg=SLOW))) == [False]


def test_a_curve_ends_above_another_as_far_as_the_seeds_can_tell():
    check = claims.above("LG-SRPFL", "FedRep-SRPFL")
    high, low, once = of_seeds(SLOW, SLOW), of_seeds(NEVER, NEVER), of_seeds(SLOW, NEVER)
    verdicts = [check({"LG-SRPFL": high, "FedRep-SRPFL": other})[0].word for other in (low, once, high)]
    assert verdicts == [HOLDS, INCONCLUSIVE, FAILS]
    assert check({"LG-SRPFL": high, "FedRep-SRPFL": once})[0].measured == "15.0 ± 21.2"  # 0 and 30 points


def test_a_panel_without_the_lg_methods_makes_no_claims_about_them():
    two = {name: found for name, found in panel().items() if name.startswith("FedRep")}
    assert len(claims.earlier(two)) == len(claims.agree_in_the_end(two)) == 1
    assert np.all(passed(claims.earlier(two)))
