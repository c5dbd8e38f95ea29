from functools import partial

import pytest
import torch
from fakes.loops import descended, features, participants, samples_of
from fakes.methods import built, distance, tensors, weighted_mean
from torch import nn
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.methods import PFedFDA
from pfl_lightning.methods.pfedfda import Gaussians, bayes_head, mixed
from pfl_lightning.models import Network

pytestmark = pytest.mark.usefixtures("float64")

HEAD = ("fc3.weight", "fc3.bias")


def test_the_head_is_bayes_rule():
    distributions = Gaussians(
        torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 2.0]).diag(), torch.ones(2) > 0
    )
    weight, bias = bayes_head(distributions, torch.tensor([1, 3]))
    torch.testing.assert_close(weight, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(bias, torch.tensor([-2.386294, -1.287682]), atol=1e-6, rtol=0)


def test_with_equal_shares_and_a_round_covariance_the_nearest_mean_decides_among_the_known_ones():
    source = torch.Generator().manual_seed(0)
    means, z = torch.randn(4, 3, generator=source), torch.randn(50, 3, generator=source)
    known = torch.tensor([True, True, False, True])
    weight, bias = bayes_head(Gaussians(means, torch.eye(3), known), torch.tensor([5, 5, 0, 5]))
    nearest = torch.cdist(z, means).masked_fill(~known, torch.inf).argmin(1)
    assert torch.equal((z @ weight.T + bias).argmax(1), nearest)
    assert len(nearest.unique()) == 3


def test_a_mean_that_only_one_side_has_is_not_mixed():
    own = Gaussians(torch.tensor([[1.0], [3.0], [0.0]]), torch.eye(1), torch.tensor([True, True, False]))
    shared = Gaussians(torch.tensor([[5.0], [9.0], [7.0]]), 5 * torch.eye(1), torch.tensor([True, False, True]))
    found = mixed(own, shared, torch.tensor(0.25))
    assert found.means[:, 0].tolist() == [4, 3, 7]
    assert found.covariance.item() == 4
    assert found.known.all()


@pytest.mark.parametrize(("shared_means", "share"), [([-1.0, 1.0], 0.0), ([1.0, -1.0], 1.0)])
def test_a_client_takes_its_own_means_where_the_shared_ones_are_wrong(shared_means, share, classes_of):
    method = built(PFedFDA, classes_of(2))
    targets = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    z = 2.0 * targets[:, None] - 1 + torch.tensor([0.5, 0.5, -0.5, -0.5]).repeat(2)[:, None]
    shared = Gaussians(torch.tensor(shared_means)[:, None], 0.1 * torch.eye(1), torch.ones(2) > 0)
    assert method.best_share(z, targets, shared) == share
    assert method.best_share(z[3:5], targets[3:5], shared) == 0, "no class has two samples"


def estimated(z, y, ridge):
    """Means by class, and the covariance, of some samples."""
    means = {label: z[y == label].mean(0) for label in y.unique().tolist()}
    scatter = sum(
        (torch.outer(a - means[c], a - means[c]) for a, c in zip(z, y.tolist(), strict=True)), torch.zeros(5, 5)
    )
    return means, scatter / max(len(y) - 1, 1) + ridge * torch.eye(5)


def between(own, shared, share):
    """Statistics with a share of a client's own ones."""
    means = {**shared[0], **own[0]}
    for label in own[0].keys() & shared[0].keys():
        means[label] = share * own[0][label] + (1 - share) * shared[0][label]
    return means, share * own[1] + (1 - share) * shared[1]


def head(statistics, y):
    """The head of some statistics; classes without a mean have a bias that never wins."""
    means, covariance = statistics
    inverse, weight, bias = covariance.inverse(), torch.zeros(3, 5), torch.full((3,), -1e9)
    for label, mean in means.items():
        weight[label] = inverse @ mean
        bias[label] = (y == label).double().mean().clamp(min=1e-4).log() - mean @ inverse @ mean / 2
    return weight, bias


def personal(z, y, shared, ridge):
    """Statistics of a client, by validation on two halves of its samples, and the share of its own."""
    second, has_two = torch.zeros(len(y)), torch.zeros(len(y))
    for label in y.unique().tolist():
        places = (y == label).nonzero()[:, 0]
        second[places[1::2]] = 1
        has_two[places] = float(len(places) > 1)
    losses = []
    for share in range(11):
        loss = 0.0
        for kept in (second == 0, second == 1):
            tested = ~kept & (has_two == 1)
            if tested.any():
                weight, bias = head(between(estimated(z[kept], y[kept], ridge), shared, share / 10), y[kept])
                loss += float(F.cross_entropy(z[tested] @ weight.T + bias, y[tested], reduction="sum"))
        losses.append(loss)
    share = next(place for place, loss in enumerate(losses) if loss <= min(losses) + 1e-6) / 10
    return between(estimated(z, y, ridge), shared, share), share


def test_three_rounds_of_most_clients_are_a_plain_loop(pool_of, fit):
    data = pool_of(4)
    method = built(partial(PFedFDA, ridge=0.5), data, weight_decay=0.0, epochs=2)
    start = tensors(method.network)
    body = {name: tensor for name, tensor in start.items() if name not in HEAD}
    first, shared = dict(enumerate(start["fc3.weight"])), ({}, torch.eye(5))

    fit(method, data, 3, bare=True)
    shares = set()
    for index in range(3):
        bodies, found, sizes = [], [], []
        for _, own in participants(data, index):
            inputs, y = samples_of(own)
            begin = shared[0] or {label: first[label] for label in y.unique().tolist()}
            weight, bias = head((begin, shared[1]), y)

            def loss(moving, inputs, targets, weight=weight, bias=bias):
                return F.cross_entropy(features(moving, inputs) @ weight.T + bias, targets)

            bodies.append(descended(body, loss, own, (1, "train", index, "body"), epochs=2))
            statistics, share = personal(features(bodies[-1], inputs), y, shared, 0.5)
            found.append((y, statistics))
            sizes.append(len(y))
            shares.add(share)
        body = weighted_mean(bodies, data.make_round(index).examples.counts)
        covariance = sum(n * own[1] for n, (_, own) in zip(sizes, found, strict=True)) / sum(sizes)
        means = dict(shared[0])
        for label in range(3):
            holders = [(len(y), own[0][label]) for y, own in found if (y == label).any()]
            if holders:
                means[label] = sum(n * mean for n, mean in holders) / sum(n for n, _ in holders)
        shared = means, covariance
    assert distance(body, method.network) < 1e-9
    assert distance({"means": torch.stack([shared[0][c] for c in range(3)])}, method.server.tree) < 1e-9
    assert distance({"covariance": shared[1]}, method.server.tree) < 1e-9
    assert len(shares) > 2
    for client in range(6):
        inputs, y = samples_of(data.tables["train"].examples(torch.tensor([client])))
        z = features(body, inputs)
        heads = {"personal": head(personal(z, y, shared, 0.5)[0], y), "global": head(shared, torch.arange(3))}
        for model, (weight, bias) in heads.items():
            assert (method.client(client, model, data)(inputs) - z @ weight.T - bias).abs().max() < 1e-7


def of_one_output(input_shape, num_classes, bias=True):
    return Network({"flat": nn.Flatten(), "fc1": nn.Linear(256, 5), "fc3": nn.Linear(5, 1, bias=bias)})


def test_a_single_output_is_the_difference_of_two(classes_of):
    method = built(PFedFDA, classes_of(2), network=of_one_output)
    start = method.server.tree["means"]
    assert torch.equal(start, torch.cat([torch.zeros(1, 5), method.network.fc3.weight.detach()]))
    distributions = Gaussians(torch.randn(2, 5), 2 * torch.eye(5), torch.ones(2) > 0)
    counts = torch.tensor([[1, 3], [2, 0]])
    heads = method.bayes_heads(distributions, counts)
    weight, bias = bayes_head(distributions, counts)
    torch.testing.assert_close(heads["fc3.weight"], (weight[1] - weight[0]).expand(2, 1, 5))
    torch.testing.assert_close(heads["fc3.bias"], (bias[:, 1] - bias[:, 0])[:, None])


def test_a_head_without_a_bias_is_refused(classes_of):
    with pytest.raises(PflError, match="a linear last layer with bias"):
        built(PFedFDA, classes_of(2), network=partial(of_one_output, bias=False))
