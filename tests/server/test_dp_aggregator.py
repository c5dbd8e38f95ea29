"""Private sums: what one client can change, the noise, and the budget."""

import math
from functools import partial

import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from fakes.sums import add, rows, uploads_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from pfl_lightning.errors import PflError
from pfl_lightning.server import Aggregator, DPAggregator, SecureAggregator

SIZE = 8
IDS = torch.arange(SIZE)
WEIGHTS = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64)
LOOSE = 1e9  # clips nothing


tree_of = partial(uploads_of, SIZE)


def received(entries=5):
    return {"w": torch.ones(entries, 3, dtype=torch.float64), "b": torch.zeros(7, dtype=torch.float64)}


def summed(sums, tree, cuts=(), key=(1, "round")):
    start = received(tree["w"].shape[1])
    total = sums.start(IDS, key, received=start)
    for places in torch.tensor_split(IDS, cuts):
        add(total, places, WEIGHTS[places], rows(tree, places))
    return total.result()


def distance(one, other):
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in received()))


def moved(one, other, *options):
    """How far the sums of two sets of uploads are from each other."""
    return distance(summed(DPAggregator(*options), one), summed(DPAggregator(*options), other))


def test_without_clipping_and_noise_the_sum_is_the_plain_one_bit_for_bit():
    expected = add(Aggregator().start(IDS, (1,)), IDS, WEIGHTS, tree_of(0)).result()
    sums = DPAggregator(LOOSE, 0.0)
    private = summed(sums, tree_of(0))
    assert all(torch.equal(private[name], tensor) for name, tensor in expected.items())
    # 5 * 3 + 7 numbers and the loss, 8 bytes each
    assert sums.scalars() == {"sums/calls": 1.0, "sums/bytes": SIZE * 23 * 8}


@given(st.integers(0, 1000), st.integers(0, SIZE - 1), st.floats(0.01, 100), st.floats(0.01, 1000))
def test_another_client_in_the_place_of_one_moves_the_sum_by_at_most_twice_the_norm(seed, place, norm, size):
    one, other = tree_of(seed, size), tree_of(seed, size)
    for name, stack in tree_of(seed + 1, 10 * size).items():
        other[name][place] = stack[place]
    assert 0 < moved(one, other, norm) <= 2 * norm / SIZE * (1 + 1e-9)


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_an_upload_that_is_not_finite_counts_as_none_that_moved(wrong):
    tree, still = tree_of(0), tree_of(0)
    tree["w"][3, 0, 0] = wrong
    for name, tensor in received().items():
        still[name][3] = tensor
    assert moved(tree, still, 0.5, 0.0) == 0


def test_opposite_updates_reach_the_sensitivity():
    one, other = ({name: sign * stack.abs() * 1e6 for name, stack in tree_of(0).items()} for sign in (1, -1))
    for name in one:
        other[name][1:] = one[name][1:]
    assert moved(one, other, 3.0, 0.0) == pytest.approx(2 * 3 / SIZE, rel=1e-2)


def test_the_noise_has_the_standard_deviation_of_the_rule_and_spares_the_loss():
    tree = tree_of(0, entries=5000)
    clear, noisy = (summed(DPAggregator(0.5, multiplier), tree) for multiplier in (0.0, 4.0))
    noise = (noisy["w"] - clear["w"]).flatten()
    # 4 * 0.5 / 8; the sample deviation of 15,000 numbers is off by 0.6 % (one standard deviation)
    assert stats.kstest(noise.numpy() / 0.25, "norm").pvalue > 0.01
    assert float(noise.std()) == pytest.approx(0.25, rel=0.025)
    assert torch.equal(noisy["loss"], clear["loss"])


def test_noise_is_a_function_of_the_key_and_not_of_the_chunks():
    whole, again, other = (summed(DPAggregator(), tree_of(0), *case) for case in ((), ((3,),), ((), (2, "round"))))
    assert distance(whole, again) < 1e-12
    assert distance(whole, other) > 0.1


def test_every_tensor_has_noise_of_its_own():
    start = {"one": torch.zeros(20), "other": torch.zeros(20)}
    total = DPAggregator().start(IDS, (1,), received=start)
    add(total, IDS, WEIGHTS, {name: torch.zeros(SIZE, 20) for name in start})
    assert not torch.equal(*total.result().values())


def test_a_secure_sum_inside_gives_the_same_up_to_rounding():
    plain, secure = (summed(DPAggregator(secure=secure), tree_of(0)) for secure in (False, True))
    assert 0 < distance(plain, secure) < 1e-10
    assert DPAggregator(secure=True).fewest == SecureAggregator.fewest


def test_the_mean_is_that_of_the_updates_that_arrive():
    sums, tree = DPAggregator(LOOSE, 0.0), tree_of(0)
    total = sums.start(IDS, (1,), received=received())
    add(total, IDS[:6], torch.full((6,), 1 / 6, dtype=torch.float64), rows(tree, slice(6)))
    total.drop(IDS[6:])
    torch.testing.assert_close(total.result()["w"], tree["w"][:6].mean(0))


def test_unequal_weights_and_other_sums_are_refused():
    total = DPAggregator().start(IDS, (1,), received=received())
    with pytest.raises(AssertionError, match="one could move the sum"):
        total.encode(IDS, WEIGHTS * torch.arange(SIZE), tree_of(0))
    with pytest.raises(
        PflError, match=r"^model.aggregator: DPAggregator is not possible for other sums than of models"
    ):
        DPAggregator().start(IDS, (1,))


def spent(multiplier, rounds, sample, clients, delta=1e-5):
    return DPAggregator(1.0, multiplier, delta).spent(rounds, sample, clients).get("privacy/epsilon")


@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 1), (4.0, 10), (20.0, 100)])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_with_all_clients_epsilon_lies_between_the_exact_one_and_that_of_concentrated_privacy(
    multiplier, rounds, delta
):
    # rounds Gaussian releases of sensitivity 2 are one with mu = 2 sqrt(rounds) / multiplier. Its exact epsilon solves
    # delta = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu) (Balle, Wang, ICML 2018, arXiv:1805.06530); above
    # it is rho + 2 sqrt(rho log(1 / delta)) with rho = mu^2 / 2 (Bun, Steinke, TCC 2016, arXiv:1605.02065)
    mu = 2 * math.sqrt(rounds) / multiplier
    phi = stats.norm.cdf

    def missing(eps):
        return phi(mu / 2 - eps / mu) - math.exp(eps + stats.norm.logcdf(-mu / 2 - eps / mu)) - delta

    exact, rho = optimize.brentq(missing, 0, 1000), mu**2 / 2
    assert exact < spent(multiplier, rounds, 50, 50, delta) < rho + 2 * math.sqrt(rho * math.log(1 / delta))


@pytest.mark.slow
def test_sampling_is_counted_as_the_library_counts_it_and_amplifies():
    drawn = SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(0.75))  # 1.5 norms of noise, sensitivity 2
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    expected = accountant.compose(drawn, 30).get_epsilon(1e-5)
    assert spent(1.5, 30, 10, 1000) == pytest.approx(expected, rel=1e-12)
    assert expected < spent(1.5, 30, 100, 1000) < spent(1.5, 30, 1000, 1000)
    assert spent(1.5, 29, 10, 1000) < expected


@pytest.mark.slow
@pytest.mark.parametrize("sample", [1, 30, 50, 99])
def test_a_sample_never_costs_more_than_all_clients(sample):
    assert spent(3.0, 100, sample, 100) <= spent(3.0, 100, 100, 100)


@pytest.mark.slow
def test_few_clients_of_many_have_their_bound_at_a_large_order():
    # the library's bound at each order near the best one, which its own choice of orders, 63 and then 128, leaves out
    drawn = SampledWithoutReplacementDpEvent(1_000_000, 50, GaussianDpEvent(2.5))
    best = RdpAccountant([*range(115, 128)], NeighboringRelation.REPLACE_ONE).compose(drawn, 1000).get_epsilon(1e-6)
    assert best == pytest.approx(0.066, abs=0.001)
    assert best <= spent(5.0, 1000, 50, 1_000_000, 1e-6) < 1.05 * best


def test_no_round_takes_nothing_and_no_noise_has_no_budget():
    assert spent(1.0, 0, 5, 50) == 0
    assert spent(0.0, 3, 5, 50) is None
    assert Aggregator().spent(3, 5, 50) == {}
