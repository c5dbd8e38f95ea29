import numpy as np
import pytest
from fakes.panels import failed
from reproduction.claims import HOLDS, INCONCLUSIVE, OURS
from reproduction.srpfl import linear
from reproduction.srpfl.linear import EQUAL, PARTICIPANTS, POOLS

# numbers about which all claims hold: 0.44 noise / sqrt(n) for the floors
AS_EXPECTED = {
    **{f"contraction {n}": np.full(2, 0.6) for n in PARTICIPANTS},
    "log10 of the largest distance": -14.5,
    **{f"floor {noise} {n}": np.full(2, 0.44 * noise / n**0.5) for noise in (0.1, 1.0) for n in PARTICIPANTS},
    **{f"slope {noise}": np.full(2, -0.5) for noise in (0.1, 1.0)},
    **{f"proportion {n}": np.ones(2) for n in PARTICIPANTS},
    **{f"safe contraction {n}": np.full(2, 0.95) for n in (8, 64)},
    "theorem": np.full(2, 0.987),
    **{f"safe floor {n}": np.full(2, 0.014 / n**0.5) for n in (8, 64)},
    "safe slope": np.full(2, -0.5),
    **{f"ratio {pool}": np.full(2, ratio) for pool, ratio in zip(POOLS, (0.28, 0.16, 0.14, 0.12, 0.12), strict=True)},
    **{f"costly ratio {pool}": np.full(2, 1.1) for pool in POOLS},
    "most rounds": 41.0,
    "theory's stages": np.array([14.0, 15.0]),
    **{f"stages of {length}": np.array([13.5, 14.0]) for length in EQUAL},
    "rounding": 5.8,
}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"contraction 16": np.full(2, 0.85)}, ["contraction per round, n = 8 to 64"]),
        ({"log10 of the largest distance": -6.0}, ["largest distance after 80 rounds, as a power of 10"]),
        ({"floor 1.0 64": np.full(2, 0.1)}, ["floor with noise 1.0, n = 8 to 64; log-log slope"]),
        ({"slope 0.1": np.zeros(2)}, ["floor with noise 0.1, n = 8 to 64; log-log slope"]),
        ({"proportion 8": np.full(2, 1.3)}, ["floor / noise, 1 against 0.1"]),
        ({"theorem": np.full(2, 0.9)}, ["contraction per round at the rate 1/16, inside the theorem's range"]),
        (
            {"safe floor 64": np.full(2, 0.1)},
            ["floor with noise 0.1, n = 64, at the rate 1/16, inside the theorem's range, and at the rate 0.5"],
        ),
        ({"safe slope": np.zeros(2)}, ["log-log slope of the floors with noise 0.1 at the rate 1/16"]),
        ({"ratio 64": np.ones(2)}, ["seconds of SRPFL / FedRep, N = 16 to 256"]),
        ({"ratio 64": np.full(2, 0.02)}, ["seconds of SRPFL / FedRep, N = 16 to 256"]),  # much faster than expected
        ({"most rounds": 300.0}, ["most rounds of a run"]),
        ({"costly ratio 16": np.full(2, 0.5)}, ["with C = 100 the gain is lost"]),
        (
            {"stages of 4": np.full(2, 8.0)},
            ["seconds with the theory's lengths of stages, and with 1, 2, 4, 8 and 16 rounds each, N = 64"],
        ),
    ],
    ids=str,
)
def test_claims_hold_for_numbers_that_are_as_expected_and_fail_for_others(changes, wrong, part, claims_about):
    claims = claims_about(part(paper="srpfl", item="linear", title=""), AS_EXPECTED | changes)
    assert failed(claims) == wrong
    assert {claim.printed for claim in claims} == {OURS}


def test_means_that_are_right_by_luck_cannot_be_told(part, claims_about):
    wide = {name: values * (0.5, 1.5) for name, values in AS_EXPECTED.items() if name.startswith("floor")}
    claims = claims_about(part(paper="srpfl", item="linear", title=""), AS_EXPECTED | wide)
    assert {claim.word for claim in claims if claim.claim.startswith("floor with noise")} == {INCONCLUSIVE}


def test_a_factor_is_that_of_geometric_decay_until_rounding():
    distances = np.array([[0.3 * 0.6**at for at in range(81)], [max(0.3 * 0.1**at, 1e-16) for at in range(81)]])
    assert linear.factors_of(distances) == pytest.approx([0.6, 0.1])


def test_a_slope_is_the_power_of_the_participants():
    floors = {n: np.array([n**-0.5, 3 * n**-1.0]) for n in PARTICIPANTS}
    assert linear.log_slopes(floors) == pytest.approx([-0.5, -1])


def test_the_theorems_factor_is_that_of_the_least_diverse_direction():
    # a = 1/16 * (1 - 0.3^2) * s^2 / 2 is at most 0.028, with a mean of 1 for s^2
    assert 0.986 < linear.theorem_factor(1, 0.3) < 1
    assert linear.theorem_factor(1, 1.0) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_claim_fails_with_fewer_seeds_and_rounds_and_the_picture_is_drawn(part, claims_about, monkeypatch):
    monkeypatch.setattr(linear, "SEEDS", linear.SEEDS[:2])
    monkeypatch.setattr(linear, "SAFE_ROUNDS", 150)
    monkeypatch.setattr(linear, "SAFE_LAST", 50)
    monkeypatch.setattr(linear, "RACES", 2)
    here = part(paper="srpfl", item="linear", title="")
    found = {claim.claim: claim.word for claim in claims_about(here, linear.numbers(here))}
    del found["seconds of SRPFL / FedRep, N = 16 to 256"]  # two races are too few for a quarter
    assert {*found.values()} <= {HOLDS, INCONCLUSIVE}
    assert (here.place.folder / "linear.png").is_file()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_race_between_lengths_of_stages_has_these_stages_and_ends_near_the_pools_floor():
    run = linear.scheduled([9, 3, 2], seed=0)
    rounds = len(run.cohort_sizes)
    assert rounds >= 14
    assert run.cohort_sizes == [8] * 9 + [16] * 3 + [32] * 2 + [64] * (rounds - 14)
    assert run.distances[-1] <= run.until < min(run.distances[:-1])


def test_a_race_that_never_ends_has_no_seconds_and_others_those_of_their_rounds(monkeypatch):
    monkeypatch.setattr(linear, "RACES", 2)
    runs = {seed: run_with(64, 64) for seed in range(2)}
    for seed, distance in enumerate((0.01, 0.02)):
        runs[seed].until, runs[seed].distances = 0.015, [distance]
    monkeypatch.setattr(linear, "scheduled", lambda lengths, seed: runs[seed])
    seconds = linear.scheduled_seconds([1])
    assert seconds[0] == pytest.approx(2 * sum(1 / left for left in range(1, 65)))
    assert np.isnan(seconds[1])


def run_with(*cohort_sizes: int):
    recorder = linear.Recorder(linear.problem(2, 0.0, seed=0))
    recorder.cohort_sizes = list(cohort_sizes)
    return recorder


def test_a_time_ratio_is_that_of_each_seed():
    # E[T_(1) of 2] / E[T_(2) of 2] = (1/2) / (3/2)
    pairs = [(run_with(2), run_with(1)), (run_with(2), run_with(2))]
    assert linear.time_ratios(pairs, 2) == pytest.approx([1 / 3, 1])
    assert linear.time_ratios(pairs, 2, 1.5) == pytest.approx([2 / 3, 1])


def test_a_floor_is_the_mean_distance_of_the_last_rounds():
    runs = {8: np.array([[9.0, 1.0, 3.0], [9.0, 5.0, 5.0]])}
    assert linear.floor_of(runs, last=2)[8].tolist() == [2, 5]


def test_the_safe_rate_is_one_that_the_theorem_allows_whoever_takes_part():
    heads = linear.problem(64, 0.0, seed=1).heads
    # one participant alone has the largest singular value
    largest = max(np.linalg.norm(head) for head in heads)
    assert 1 / (8 * largest**2) + 1e-12 >= linear.SAFE_RATE
    assert linear.RATE > 4 * linear.SAFE_RATE


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_rate_of_a_run_is_the_one_that_is_asked_for():
    fast, safe = (linear.moments_run(8, 0.0, seed=1, lr=lr, rounds=3) for lr in (linear.RATE, linear.SAFE_RATE))
    assert len(fast) == 4
    assert fast[0] == safe[0]
    assert fast[-1] < 0.5 * safe[-1]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_race_ends_with_the_pool_and_sooner_for_srpfl():
    fedrep, srpfl = linear.race(16, 16, seed=0), linear.race(16, 8, seed=0)
    assert set(fedrep.cohort_sizes) == {16}
    assert srpfl.cohort_sizes == sorted(srpfl.cohort_sizes)
    assert {srpfl.cohort_sizes[0], srpfl.cohort_sizes[-1]} == {8, 16}
    assert linear.time_ratios([(fedrep, srpfl)], 16)[0] < 0.6
    assert fedrep.distances[0] == srpfl.distances[0]
    assert max(fedrep.distances[-1], srpfl.distances[-1]) <= 1.25 * linear.FLOOR / 4
