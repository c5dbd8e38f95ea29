from types import SimpleNamespace

import numpy as np
import pytest
from fakes.panels import passed
from reproduction.claims import FAILS, HOLDS, INCONCLUSIVE
from reproduction.delta_fl import claims

from pfl_lightning.report import Curve
from pfl_lightning.score_kind import ACCURACY


def run(errors, cohorts, calls, conformity):
    return SimpleNamespace(
        settings={"data.participation.pool_size": 10, "model.conformity": conformity},
        rounds=np.array([0, 20]),
        score_kind=ACCURACY,
        client_scores=lambda model, index: 1 - np.array(errors),
        logged={"system/cohort": dict(enumerate(cohorts, start=1))},
        calls=np.array(calls),
    )


def curve(errors, cohorts=(), calls=(0.0, 20.0), conformity=0.5):
    """A curve with the final errors of some devices, ``[seeds][devices]``, and the devices kept in each round.

    Errors of one seed are those of two.
    """
    errors = errors * 2 if len(errors) == 1 else errors
    return Curve([run(each, cohorts, calls, conformity) for each in errors], "global")


EVEN = [0.2] * 11  # mean and 90th percentile 20 %
UNEVEN = [0.0] * 5 + [0.1] + [0.4] * 5  # mean 21/110 = 19.1 %, 90th percentile 40 %


def test_errors_are_percentiles_over_devices_as_numpy_has_them():
    found = claims.errors(curve([np.arange(11) / 100, np.arange(11) / 50]), "p90")
    np.testing.assert_allclose(found, [9.0, 18.0])


def test_a_better_tail_is_claimed_if_the_mean_does_not_pay_for_it():
    family = {"fedavg": curve([UNEVEN]), claims.HALF: curve([EVEN])}
    assert passed(claims.served_better(family)) == [True, True]  # 0.9 points of the mean are lost
    costly = family | {claims.HALF: curve([[0.25] * 11])}
    assert passed(claims.served_better(costly)) == [True, False]
    swapped = {"fedavg": curve([EVEN]), claims.HALF: curve([UNEVEN])}
    assert passed(claims.served_better(swapped)) == [False, True]


def test_the_best_of_several_conformities_needs_more_than_one_that_is_tried_alone():
    # differences of 3, 4 and 5 points: mean 4, t-intervals of 4 ± 2.48 alone, and ± 4.42 for one of three
    fedavg = curve([[0.23], [0.24], [0.25]])
    family = {"fedavg": fedavg, claims.HALF: curve([[0.2]] * 3)}
    assert claims.served_better(family)[0].verdict == HOLDS
    others = {f"{claims.CONFORMITY}{conformity}": fedavg for conformity in (0.8, 0.1)}
    assert claims.served_better(family | others)[0].word == INCONCLUSIVE


def test_a_tail_that_few_devices_make_is_not_told_for_others():
    errors = np.linspace(0, 1, 101)
    one = np.where(np.arange(101) == 90, 0.8, errors)  # one device alone has the 90th percentile
    family = {"fedavg": curve([errors]), f"{claims.CONFORMITY}0.5": curve([errors - 0.1])}
    family |= {f"{claims.CONFORMITY}0.8": curve([errors + 0.1]), f"{claims.CONFORMITY}0.1": curve([one])}
    found = claims.served_better_elsewhere(family)
    assert [claim.verdict for claim in found] == [HOLDS, FAILS, INCONCLUSIVE]
    assert [claim.measured for claim in found[:2]] == ["-10.0, from -10.0 to -10.0", "10.0, from 10.0 to 10.0"]
    assert found[2].measured == "-1.0, from -4.0 to 0.0"


def test_as_fast_is_to_be_near_the_own_end_at_most_a_tenth_of_the_run_after_fedavg():
    def learned(*accuracies):
        """Mean accuracies after 0, 10, ..., 100 rounds of a sum each."""
        seed = SimpleNamespace(
            rounds=np.arange(0, 101, 10),
            score_kind=ACCURACY,
            means={"global": np.array(accuracies)},
            calls=np.arange(0.0, 101, 10),
        )
        return Curve([seed] * 2, "global")

    fedavg = learned(0.1, 0.5, 0.8, *[0.8] * 8)  # near its end after 20 sums
    ends_lower = learned(0.1, 0.4, 0.6, *[0.6] * 8)
    later = learned(0.1, 0.5, 0.7, 0.8, *[0.8] * 7)
    found = claims.as_fast({"fedavg": fedavg, f"{claims.CONFORMITY}0.8": ends_lower, f"{claims.CONFORMITY}0.1": later})
    assert [(claim.claim[:3], claim.measured) for claim in found] == [
        ("0.8", "20 ± 0, 20 ± 0"),
        ("0.1", "30 ± 0, 20 ± 0"),
    ]
    assert [claim.verdict for claim in found] == [HOLDS, FAILS]  # 10 of 100 sums later is not less than a tenth


def test_a_smaller_tail_of_the_training_loss_is_weighted_by_samples():
    # 90 % of the samples are reached by the second device of four in the first case, by the last in the second
    losses, few, many = np.array([1.0, 2.0, 3.0, 4.0]), np.array([45, 45, 5, 5]), np.array([10, 10, 10, 70])

    def trained(samples):
        clients = SimpleNamespace(loss=losses, samples=samples)
        return SimpleNamespace(final=lambda split: [clients] * 2)

    (claim,) = claims.trained_better({"fedavg": trained(many), claims.HALF: trained(few)})
    assert claim.verdict == HOLDS
    assert claim.measured == "fedavg: 4.00 ± 0.00; 0.5: 2.00 ± 0.00"
    assert passed(claims.trained_better({"fedavg": trained(few), claims.HALF: trained(many)})) == [False]


@pytest.mark.parametrize(
    ("lost", "expected"), [((0.005, 0.0051), HOLDS), ((0.005, 0.05), INCONCLUSIVE), ((0.05, 0.051), FAILS)], ids=str
)
def test_means_on_par_differ_by_less_than_a_point_as_far_as_the_seeds_can_tell(lost, expected):
    fedavg = curve([[0.10] * 4, [0.30] * 4])
    other = curve([[0.10 + lost[0]] * 4, [0.30 + lost[1]] * 4])
    assert claims.served_better({"fedavg": fedavg, claims.HALF: other})[1].word == expected


@pytest.mark.parametrize(
    ("conformity", "cohorts", "expected"),
    [
        (0.5, (5, 6, 5, 6), [True, True]),
        (0.5, (8, 8, 8, 8), [False, True]),
        (0.5, (4, 4, 6, 6), [True, False]),
        (0.1, (1, 1, 1, 1), [True, True]),
        (0.1, (2, 2, 1, 1, 1, 1), [True, False]),  # in the second half 0.07 of the pool less
    ],
)
def test_as_many_devices_are_kept_as_the_conformity_says(conformity, cohorts, expected):
    assert passed(claims.kept({"name": curve([EVEN], cohorts, conformity=conformity)})) == expected


def test_a_rarer_quantile_may_change_the_tail_a_little():
    every = curve([UNEVEN])
    near, far = curve([[0.0] * 5 + [0.1] + [0.41] * 5]), curve([EVEN])
    assert passed(claims.period_matters_little({claims.HALF: every, "rarer": near, "rarest": far})) == [True, False]


def test_tails_from_sums_are_the_same_and_cost_more_sums():
    exact = curve([EVEN], (5, 5, 4, 5))
    summed = curve([EVEN], (5, 5, 4, 5), calls=(0.0, 400.0))
    found = claims.same_tails({claims.HALF: exact, claims.SUMS: summed})
    assert passed(found) == [True, True, True]
    assert found[2].measured == "1.0 ± 0.0, 20.0 ± 0.0"
    other = curve([UNEVEN], (5, 3, 4, 5))
    assert passed(claims.same_tails({claims.HALF: exact, claims.SUMS: other})) == [False, False, False]
