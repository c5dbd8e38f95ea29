from itertools import combinations

import pytest
import torch

from pfl_lightning.server import least_on_simplex


def by_trying(matrix):
    """The least value, by trying which entries are not 0."""
    values, entries = [], range(len(matrix))
    for count in range(1, len(matrix) + 1):
        for chosen in map(list, combinations(entries, count)):
            part = matrix[chosen][:, chosen]
            weights = torch.linalg.solve(part, torch.ones(count, dtype=matrix.dtype))
            weights = weights / weights.sum()
            values += [float(weights @ part @ weights)] if (weights >= 0).all() else []
    return min(values)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_no_weights_are_better(scale):
    source, supports = torch.Generator().manual_seed(0), set()
    for _ in range(40):
        points = torch.randn(7, 3, generator=source, dtype=torch.float64) + 0.7
        matrix = scale * (points @ points.T + 0.1 * torch.rand(7, generator=source).double().diag())
        found = least_on_simplex(matrix)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert float(found @ matrix @ found) == pytest.approx(by_trying(matrix), rel=1e-9)
        supports.add(int((found > 0).sum()))
    assert len(supports) > 2, "weights of several kinds"


def test_forms_without_a_curvature_have_weights_too():
    assert least_on_simplex(torch.zeros(3, 3).double()).sum() == pytest.approx(1)
    certain = torch.tensor([[0.0, 0.0], [0.0, 2.0]]).double()  # an entry that costs nothing
    torch.testing.assert_close(least_on_simplex(certain), torch.tensor([1.0, 0.0]).double())
    assert least_on_simplex(torch.ones(4, 4).double()).sum() == pytest.approx(1)
