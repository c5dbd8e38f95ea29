from functools import partial
from itertools import combinations

import pytest
import torch
from fakes.loops import participants, trained
from fakes.methods import built, distance, make_method, row, tensors, weighted_mean
from fakes.quadratics import Quadratics, built_at, network
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.methods import CFL, FedAvg
from pfl_lightning.methods.cfl import other_half

pytestmark = pytest.mark.usefixtures("float64")


def largest_between(similarities, half):
    """The largest similarity between two halves, of which one is given."""
    rest = [each for each in range(len(similarities)) if each not in half]
    return float(similarities[list(half)][:, rest].max())


def best_halves(similarities):
    """Those who leave the first one in the best of all ways to split some in two."""
    others = range(1, len(similarities))
    every = [half for size in others for half in combinations(others, size)]
    return min(every, key=lambda half: largest_between(similarities, half))


@given(st.integers(2, 7), st.integers(0, 99))
def test_no_two_halves_are_less_alike(members, seed):
    models = torch.randn(members, 3, generator=torch.Generator().manual_seed(seed)).double()
    similarities = torch.nn.functional.cosine_similarity(models[:, None], models, dim=2)
    found = other_half(similarities).nonzero()[:, 0].tolist()
    assert largest_between(similarities, found) == largest_between(similarities, best_halves(similarities))


def test_six_rounds_of_most_clients_are_a_plain_loop(pool_of, fit):
    data = pool_of(4)
    limits = {"split_below": 0.36, "split_above": 0.3}
    method = built(partial(CFL, **limits), data, weight_decay=0.0, epochs=2)
    models, updates, groups, splits = [tensors(method.network)] * 6, {}, [[*range(6)]], []
    fit(method, data, 6, bare=True)
    for index in range(6):
        found = {}
        for client, own in participants(data, index):
            start = models[client]
            found[client], _ = trained(method.network, start, own, (1, "train", index, "all"), epochs=2)
            updates[client] = torch.cat([(found[client][name] - start[name]).flatten() for name in sorted(start)])
        for group in [*groups]:
            if not (set(group) & set(found) and set(group) <= set(updates) and len(group) > 1):
                continue
            moved = torch.stack([updates[client] for client in group])
            if moved.mean(0).norm() < limits["split_below"] and moved.norm(dim=1).max() > limits["split_above"]:
                half = best_halves(torch.nn.functional.cosine_similarity(moved[:, None], moved, dim=2))
                apart = [group[place] for place in half]
                groups.remove(group)
                groups += [[client for client in group if client not in apart], apart]
                splits.append(index)
        for group in groups:
            heard = [found[client] for client in group if client in found]
            for client in group if heard else ():
                models[client] = weighted_mean(heard, torch.ones(len(heard)))
    assert 2 <= len(groups) < 6
    assert min(splits) > 0
    numbers = method.server.tree["groups"].tolist()
    assert sorted(map(tuple, groups)) == sorted({tuple(c for c in range(6) if numbers[c] == n) for n in numbers})
    for client, model in enumerate(models):
        assert distance(model, row(method, client)) < 1e-10


def test_groups_that_never_split_are_fedavg(train, pool_of):
    cfl, fedavg = train(partial(CFL, split_below=0.0), 3, pool_of(4)), train(FedAvg, 3, pool_of(4), weighting="uniform")
    assert distance(cfl.network, fedavg.network) < 1e-12
    assert max(distance(fedavg.network, row(cfl, client)) for client in range(6)) < 1e-12


def test_each_group_ends_at_the_mean_of_its_own_clients(fit):
    data = Quadratics([[0.0], [0.2], [1.0], [1.4]])
    make = partial(CFL, split_below=0.01, split_above=0.3, network=network, lr=0.5, batch_size=9, weight_decay=0.0)
    method = built_at(make_method(make), data, [0.5])
    fit(method, data, 30, bare=True)
    examples = data.tables["train"].examples(torch.arange(4))
    are_large = examples.targets(examples.positions)[:, 0] > 0.5
    weights = method.clients.stack("fc.weight").flatten()
    torch.testing.assert_close(weights, 0.1 + 1.1 * are_large, atol=1e-3, rtol=0)
    groups = method.server.tree["groups"]
    assert torch.equal(groups == groups[0], are_large == are_large[0])
