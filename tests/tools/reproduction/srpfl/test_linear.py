import pytest
from reproduction.srpfl import linear


def passed(claims) -> list[bool]:
    return [claim.passed for claim in claims]


def run_with(*cohort_sizes: int):
    recorder = linear.Recorder(linear.problem(2, 0.0, seed=0))
    recorder.cohort_sizes = list(cohort_sizes)
    return recorder


def test_contraction_is_claimed_of_geometric_decay_only():
    fast, slow = ([0.3 * factor**number for number in range(81)] for factor in (0.6, 0.85))
    assert passed(linear.contraction_claims({8: fast})) == [True, True]
    assert linear.contraction_claims({8: fast})[0].measured == "0.60"
    assert passed(linear.contraction_claims({8: fast, 16: slow})) == [False, False]  # 0.3 * 0.85^80 = 7e-7


def test_floors_are_claimed_if_they_fall_with_the_root_of_the_participants():
    floors = {noise: {n: 0.44 * noise / n**0.5 for n in linear.PARTICIPANTS} for noise in linear.FLOORS}
    assert passed(linear.floor_claims(floors)) == [True, True, True]
    assert linear.floor_claims(floors)[0].measured.endswith("; -0.50")
    flat = {**floors, 1.0: dict.fromkeys(linear.PARTICIPANTS, 0.1)}
    assert passed(linear.floor_claims(flat)) == [True, False, False]


def test_speedup_is_claimed_if_fewer_participants_do():
    some = {pool: [(run_with(*[pool] * 5), run_with(8, 8, 8, 8, pool))] for pool in linear.RATIOS}
    assert passed(linear.speedup_claims(some)) == [True, True, True]
    none = {pool: [(pairs[0][0], pairs[0][0])] for pool, pairs in some.items()}
    assert passed(linear.speedup_claims(none)) == [False, True, True]
    # E[T_(1) of 2] / E[T_(2) of 2] = (1/2) / (3/2)
    assert linear.time_ratio([(run_with(2), run_with(1))], 2) == pytest.approx(1 / 3)


def test_closed_forms_hold():
    assert passed(linear.exact_claims()) == [True, True]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_race_ends_with_the_pool_and_sooner_for_srpfl():
    fedrep, srpfl = linear.race(16, 16, seed=0), linear.race(16, 8, seed=0)
    assert set(fedrep.cohort_sizes) == {16}
    assert srpfl.cohort_sizes == sorted(srpfl.cohort_sizes)
    assert {srpfl.cohort_sizes[0], srpfl.cohort_sizes[-1]} == {8, 16}
    assert linear.time_ratio([(fedrep, srpfl)], 16) < 0.6
    assert fedrep.distances[0] == srpfl.distances[0]
    assert max(fedrep.distances[-1], srpfl.distances[-1]) <= 1.25 * linear.FLOOR / 4


def test_the_picture_is_drawn(tmp_path):
    floors = {noise: {n: noise / n**0.5 for n in linear.PARTICIPANTS} for noise in linear.FLOORS}
    linear.draw({8: [0.3, 0.2]}, floors, linear.RATIOS, tmp_path / "new" / "figure.png")
    assert (tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_claim_holds():
    assert [claim for claim in linear.linear_claims() if not claim.passed] == []
