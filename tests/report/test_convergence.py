import numpy as np
import pytest

from pfl_lightning.report.convergence import converged_round


def plain(losses, window, improvement, patience):
    """The definition, word by word."""
    average = {k: sum(losses[k - window : k]) / window for k in range(window, len(losses) + 1)}
    for k in range(window + patience, len(losses) + 1):
        last = range(k - patience + 1, k + 1)
        if all(average[r] >= (1 - improvement) * average[r - 1] for r in last):
            return k
    return None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("window", "improvement", "patience"), [(5, 1e-3, 10), (1, 0.02, 3), (3, 0.1, 1)])
def test_the_round_is_that_of_the_definition(seed, window, improvement, patience):
    random = np.random.default_rng(seed)
    losses = (1 + 4 * 0.8 ** np.arange(60) + 0.001 * random.normal(size=60)).tolist()
    assert converged_round(losses, window, improvement, patience) == plain(losses, window, improvement, patience)


def test_a_flat_loss_has_converged_as_soon_as_it_can_be_known():
    assert converged_round([1.0] * 14) is None
    assert converged_round([1.0] * 15) == 15
    assert converged_round([0.0] * 40) == 15


def test_a_geometric_loss_converges_once_its_gain_over_the_limit_is_small():
    # 1 + 0.5^k: averages over one round gain 0.5^k / (1 + 0.5^(k - 1)), at most 1 % from k = 7 on
    losses = [1 + 0.5**k for k in range(1, 30)]
    assert converged_round(losses, window=1, improvement=0.01, patience=1) == 7
    assert converged_round(losses, window=1, improvement=0.01, patience=4) == 10


def test_a_loss_that_falls_by_more_each_round_or_is_not_finite_never_converges():
    assert converged_round([0.99**k for k in range(500)]) is None
    assert converged_round([0.9995**k for k in range(500)]) == 15
    assert converged_round([float("nan")] * 50) is None
    assert converged_round([float("inf")] * 50) is None
    assert converged_round([*(0.99**k for k in range(20)), *[float("inf")] * 30]) is None
