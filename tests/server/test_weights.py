from itertools import combinations
from math import inf

import pytest
import torch
from torch.nn import functional as F

from pfl_lightning.server import client_weights, cosine_attention, cosines, distance_attention, least_on_simplex
from pfl_lightning.server.weights import squared_distances
from pfl_lightning.tree import mix

MODELS = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def products(models):
    return models @ models.T


@pytest.mark.parametrize(("weighting", "mean"), [("samples", 3.0), ("uniform", 2.0)])
def test_weighted_mean_of_two_clients(weighting, mean):
    # samples (1, 3), values (0, 4): (0 + 3 * 4) / 4 = 3, and (0 + 4) / 2 = 2
    weights = client_weights(torch.tensor([1, 3]), weighting)
    assert mix(weights, {"x": torch.tensor([0.0, 4.0])})["x"] == mean


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_are_float64_and_sum_to_one(weighting):
    counts = torch.randint(1, 100_000_000, (1000,), generator=torch.Generator().manual_seed(0))
    weights = client_weights(counts, weighting)
    assert weights.dtype == torch.float64
    assert weights.sum().item() == pytest.approx(1, abs=1e-14)


def test_weights_by_cosines_are_those_of_a_plain_loop():
    found = cosine_attention(products(MODELS), 0.3, 4.0)
    for i, model in enumerate(MODELS):
        others = [j for j in range(5) if j != i]
        shares = torch.tensor([4.0 * F.cosine_similarity(model, MODELS[j], dim=0) for j in others]).softmax(0)
        torch.testing.assert_close(found[i, others], 0.7 * shares, check_dtype=False)
        assert found[i, i] == 0.3


def test_weights_by_distances_are_a_gradient_step_on_the_attention_inducing_function():
    models = MODELS.clone().requires_grad_()
    distances = (models[:, None] - models).square().sum(-1)
    inducing = (1 - (-distances / 6.0).exp()).sum() / 2  # each pair comes twice, so each model meets all others once
    (gradient,) = torch.autograd.grad(inducing / 2, models)
    mixed = distance_attention(products(MODELS), sigma=6.0, lr=1.2) @ MODELS
    torch.testing.assert_close(mixed, MODELS - 1.2 * gradient)
    assert (mixed - MODELS).abs().max() > 1e-2


@pytest.mark.parametrize("sigma", [1e-300, 1.0, 1e308])
def test_weights_are_shares_for_any_sigma(sigma):
    most = min(sigma / 4, 1e300)
    for weights in (cosine_attention(products(MODELS), 0.3, sigma), distance_attention(products(MODELS), sigma, most)):
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(5, dtype=torch.float64))


def test_a_large_sigma_leaves_nothing_but_the_most_similar_client():
    weights = cosine_attention(products(MODELS.float()), 0.25, 1e300)
    nearest = cosines(products(MODELS)).fill_diagonal_(-inf).argmax(1)
    expected = 0.25 * torch.eye(5) + 0.75 * F.one_hot(nearest, 5)
    assert torch.equal(weights, expected.double())


def test_among_equal_models_all_others_count_the_same():
    equal = products(MODELS[:1].expand(4, -1))
    off_diagonal = 1 - torch.eye(4, dtype=torch.float64)
    cosine, distance = cosine_attention(equal, 0.4, 10.0), distance_attention(equal, 5.0, 0.5)
    torch.testing.assert_close(cosine, 0.4 * torch.eye(4, dtype=torch.float64) + 0.2 * off_diagonal)  # (1 - 0.4) / 3
    torch.testing.assert_close(distance * off_diagonal, 0.1 * off_diagonal)  # lr / sigma
    largest = distance_attention(equal, sigma=6.0, lr=2.0)  # lr / sigma = 1 / 3 leaves nothing for oneself
    torch.testing.assert_close(largest, off_diagonal / 3)


def test_a_model_of_zeros_is_like_no_other():
    models = MODELS.clone()
    models[2] = 0
    similarity = cosines(products(models))
    assert (similarity[2] == 0).all()
    assert (similarity[:, 2] == 0).all()
    torch.testing.assert_close(cosine_attention(products(models), 0.2, 50.0)[2], torch.full((5,), 0.2).double())


@pytest.mark.parametrize("model", [0.0, 3.0])
def test_a_client_that_is_alone_has_its_own_model(model):
    alone = torch.full((1, 1), model)
    assert cosine_attention(alone, 0.5, 10.0).tolist() == distance_attention(alone, 10.0, 5.0).tolist() == [[1.0]]


def test_distances_of_equal_models_are_not_negative():
    models = (MODELS[:1] / 3).expand(5, -1)
    distances = squared_distances(products(models))
    assert 0 <= distances.min() <= distances.max() < 1e-14
    torch.testing.assert_close(squared_distances(products(MODELS)), torch.cdist(MODELS, MODELS).square())


def test_the_weights_of_three_models_are_known():
    """From angles of 45 and 90 degrees; a client keeps 0.4, and exp(2 cos) shares the rest among the others."""
    gram = products(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]], dtype=torch.float64))
    assert float(cosines(gram)[0, 1]) == pytest.approx(0.7071067812)
    near, far = 0.4826578095, 0.1173421905
    expected = torch.tensor([[0.4, near, far], [0.3, 0.4, 0.3], [far, near, 0.4]], dtype=torch.float64)
    torch.testing.assert_close(cosine_attention(gram, 0.4, 2.0), expected, atol=1e-10, rtol=0)


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
