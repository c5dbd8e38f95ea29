import numpy as np
import pytest

from pfl_lightning.data import IID, EqualSizes, LogNormalSizes, UniformSizes
from pfl_lightning.errors import PflError


def draw(sizes, clients=20_000, seed=0):
    return sizes.draw(clients, np.random.default_rng(seed))


def test_equal_sizes_are_those_of_the_papers():
    # SRPFL's FEMNIST: 150 samples a client
    assert draw(EqualSizes(), 4).tolist() == [150] * 4


def test_uniform_sizes_reach_both_ends_and_nothing_beyond():
    # SRPFL, Fig. 8: 100 + u, u from 0 to 50
    drawn = draw(UniformSizes())
    assert set(drawn.tolist()) == set(range(100, 151))
    # standard deviation of the mean: sqrt((51**2 - 1) / 12 / 20_000) = 0.1
    np.testing.assert_allclose(drawn.mean(), 125, atol=0.4)
    assert set(draw(UniformSizes(7, 7), 9).tolist()) == {7}


def test_uniform_sizes_in_the_wrong_order_are_refused():
    with pytest.raises(PflError, match=r"^data\.partition\.sizes\.low: 3 .* allowed: 1 to 2 \(sizes\.high\)"):
        UniformSizes(3, 2)


def test_log_normal_sizes_have_the_quantiles_of_the_law():
    # FedRep: 100 + LogNormal(4, 1); rounding down takes half a sample of some 50 on average
    drawn = draw(LogNormalSizes()) - 100 + 0.5
    # the standard normal's quantiles; those of 20,000 draws have a standard deviation of at most 0.013
    np.testing.assert_allclose(np.quantile(np.log(drawn), [0.1587, 0.5, 0.8413]), [3, 4, 5], atol=0.05)


def test_log_normal_sizes_are_rounded_down_to_a_sample_at_least():
    # exp(1) = 2.7
    assert set(draw(LogNormalSizes(3, 1.0, 0.0), 5).tolist()) == {5}
    assert draw(LogNormalSizes(0, -3.0, 1.0)).min() == 1


def test_log_normal_sizes_beyond_all_numbers_are_more_than_there_are(share_out):
    with pytest.raises(PflError, match=r"^data\.partition\.sizes: 3 clients .* allowed: up to the 30 "):
        share_out(IID(LogNormalSizes(mean=1e4)), [np.arange(30) % 2], 3)
