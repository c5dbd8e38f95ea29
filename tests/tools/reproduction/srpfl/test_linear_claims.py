from types import SimpleNamespace

import numpy as np
import pytest
from fakes.panels import passed
from reproduction.claims import HOLDS, INCONCLUSIVE
from reproduction.srpfl import linear
from reproduction.srpfl import linear_claims as claims
from reproduction.srpfl.linear import PARTICIPANTS, POOLS, SAFE_ROUNDS, SEEDS
from theory.times import expected_time

FLOORS = {noise: {n: 0.44 * noise / n**0.5 * np.ones(2) for n in PARTICIPANTS} for noise in claims.FLOORS}


def decays(factor, rounds=80):
    """The distances of as many seeds as the claims have, shrinking by a factor in each round."""
    return np.array([[0.3 * factor**number for number in range(rounds + 1)]] * len(SEEDS))


def races(srpfl, fedrep=lambda pool: [pool] * 5):
    """A race for each size of the pool, by the participants of each round."""
    pairs = {pool: (fedrep(pool), srpfl(pool)) for pool in POOLS}
    return {pool: [tuple(SimpleNamespace(cohort_sizes=sizes) for sizes in pair)] * 2 for pool, pair in pairs.items()}


def test_contraction_is_claimed_of_geometric_decay_only():
    assert passed(claims.contraction_claims({8: decays(0.6)})) == [True, True]
    assert claims.contraction_claims({8: decays(0.6)})[0].measured == "0.60 ± 0.00"
    # 0.3 * 0.85^80 = 7e-7
    assert passed(claims.contraction_claims({8: decays(0.6), 16: decays(0.85)})) == [False, False]


def test_floors_are_claimed_if_they_are_what_is_expected_and_fall_with_the_root_of_the_participants():
    assert passed(claims.floor_claims(FLOORS)) == [True, True, True]
    assert claims.floor_claims(FLOORS)[0].measured.endswith("; -0.50 ± 0.00")
    flat = {**FLOORS, 1.0: {n: np.full(2, 0.1) for n in PARTICIPANTS}}
    assert passed(claims.floor_claims(flat)) == [True, False, False]
    high = {noise: {n: 3 * values for n, values in by_size.items()} for noise, by_size in FLOORS.items()}
    assert passed(claims.floor_claims(high)) == [False, False, True]


def test_the_theorem_holds_at_a_rate_that_it_allows():
    floors, fast = ({n: scale / n**0.5 * np.ones(2) for n in PARTICIPANTS} for scale in (0.01, 0.03))
    runs, slow = ({n: decays(factor, SAFE_ROUNDS) for n in PARTICIPANTS} for factor in (0.95, 0.995))
    assert passed(claims.safe_claims(runs, floors, fast)) == [True, True]
    # a = 1/16 * (1 - 0.3^2) * s^2 / 2 is at most 0.028, with a mean of 1 for s^2: sqrt(1 - a) is at least 0.986
    assert passed(claims.safe_claims(slow, floors, fast)) == [False, True]
    assert passed(claims.safe_claims(runs, fast, floors)) == [True, False]
    flat = {n: np.full(2, 0.001) for n in PARTICIPANTS}
    assert passed(claims.safe_claims(runs, flat, fast)) == [True, False]


def test_speedup_is_claimed_if_fewer_participants_take_as_long_as_expected():
    # rounds of 8 participants for each of the pool that bring the expected ratio of the expected times
    def as_expected(pool):
        n = 8
        one, all_of_them = expected_time([n], pool), expected_time([pool], pool)
        return [n] * max(1, round(5 * claims.RATIOS[pool] * all_of_them / one))

    def nothing_gained(pool):
        return [pool] * 5

    assert passed(claims.speedup_claims(races(as_expected)))[:2] == [True, True]
    assert passed(claims.speedup_claims(races(nothing_gained))) == [False, True, True]
    # five times as fast as expected
    assert passed(claims.speedup_claims(races(lambda pool: [1])))[0] is False


def test_costly_communication_loses_the_gain_unless_there_are_fewer_rounds():
    as_many, fewer, endless = (races(lambda pool, n=n: [8] * n) for n in (5, 4, 300))
    assert passed([claims.speedup_claims(as_many)[2], claims.speedup_claims(fewer)[2]]) == [True, False]
    assert passed([claims.speedup_claims(endless)[1]]) == [False]


def test_means_that_are_right_by_luck_cannot_be_told():
    wide = {noise: {n: values * (0.5, 1.5) for n, values in by_size.items()} for noise, by_size in FLOORS.items()}
    assert {claim.word for claim in claims.floor_claims(wide)[:2]} == {INCONCLUSIVE}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_claim_fails_with_fewer_seeds_and_rounds_and_the_picture_is_drawn(place, monkeypatch):
    for module in (linear, claims):
        monkeypatch.setattr(module, "SEEDS", SEEDS[:2])
        monkeypatch.setattr(module, "ROUNDS", 50)
    monkeypatch.setattr(linear, "SAFE_ROUNDS", 150)
    monkeypatch.setattr(claims, "SAFE_LAST", 50)
    monkeypatch.setattr(linear, "RACES", 3)
    monkeypatch.setattr(claims, "NEAR_RATIO", 0.4)
    assert {claim.word for claim in claims.linear_claims(place)} <= {HOLDS, INCONCLUSIVE}
    assert (place.folder / "linear.png").is_file()
