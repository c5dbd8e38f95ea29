from functools import partial

import pytest
import torch
from fakes.loops import participants, trained
from fakes.methods import built, distance, row, tensors
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, Local, PFedGraph
from pfl_lightning.server import nearest_on_simplex

pytestmark = pytest.mark.usefixtures("float64")


def flat(model):
    return torch.cat([model[name].flatten() for name in sorted(model)])


def cosine(one, other):
    return torch.nn.functional.cosine_similarity(one, other, dim=0)


def projected(point):
    """The point of the simplex nearest to another one, by halving an interval of what to take away."""
    low, high = point.min() - 1, point.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (point - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (point - low).clamp(min=0)


@pytest.mark.parametrize(("cosine", "own"), [(0.0, 0.8125), (0.5, 0.65625), (-0.6, 1.0)])
def test_two_equal_clients_mix_by_their_cosine(cosine, own):
    """The own weight is 1/2 + (1 - c) / (4 alpha), and at most 1."""
    products = 9.0 * torch.tensor([[1.0, cosine], [cosine, 1.0]])
    graph = PFedGraph().graph(products, torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(graph, torch.tensor([[own, 1 - own], [1 - own, own]]))


def test_three_clients_of_unequal_sizes_mix_as_by_hand():
    products = torch.tensor([[1.0, 0.6, -0.2], [0.6, 1.0, 0.1], [-0.2, 0.1, 1.0]])
    graph = PFedGraph().graph(products, torch.tensor([0.5, 0.3, 0.2]))
    expected = torch.tensor([[0.725, 0.275, 0.0], [0.475, 0.525, 0.0], [0.1875, 0.175, 0.6375]])
    torch.testing.assert_close(graph, expected)


def test_who_has_not_moved_is_like_nobody_and_who_has_diverged_is_an_error():
    weights = torch.tensor([0.25, 0.75])
    graph = PFedGraph().graph(torch.tensor([[0.0, 0.0], [0.0, 4.0]]), weights)
    torch.testing.assert_close(graph[0], weights)
    assert PFedGraph().graph(torch.tensor([[7.0]]), torch.ones(1)).tolist() == [[1.0]]
    with pytest.raises(PflError, match="diverged"):
        PFedGraph().graph(torch.full((2, 2), torch.nan), weights)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8))
def test_no_weights_are_nearer_to_a_point(point):
    point = torch.tensor(point).double()
    torch.testing.assert_close(nearest_on_simplex(point[None])[0], projected(point), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("weighting", "alpha"), [("samples", 1.5), ("uniform", 0.5)])
def test_four_rounds_of_most_clients_are_a_plain_loop(weighting, alpha, pool_of, fit):
    data = pool_of(4)
    make = partial(PFedGraph, alpha=alpha, strength=0.7, weighting=weighting)
    method = built(make, data, weight_decay=0.0, epochs=2)
    first = tensors(method.network)
    models, starts, graphs = [first] * 6, [first] * 6, []
    fit(method, data, 4, bare=True)
    for index in range(4):
        chosen = participants(data, index)
        for client, own in chosen:

            def away(moving, mix=starts[client]):
                return -0.7 * cosine(flat(moving), flat(mix))

            rule = {"penalty": away} if index else {}
            key = (1, "train", index, "all")
            models[client], _ = trained(method.network, starts[client], own, key, epochs=2, **rule)
        sizes = torch.cat([own.counts if weighting == "samples" else torch.ones(1) for _, own in chosen]).double()
        moved = [flat(models[client]) - flat(first) for client, _ in chosen]
        mixes = {}
        for (client, _), update in zip(chosen, moved, strict=True):
            alike = torch.stack([cosine(update, other) for other in moved])
            graphs.append(shares := projected(sizes / sizes.sum() + alike / (2 * alpha)))
            pairs = [(share, models[other]) for share, (other, _) in zip(shares, chosen, strict=True)]
            mixes[client] = {name: sum(share * model[name] for share, model in pairs) for name in first}
        starts = [mixes.get(client, start) for client, start in enumerate(starts)]
    zeros = [int((graph == 0).sum()) for graph in graphs]
    assert min(zeros) < max(zeros)
    for client in range(6):
        assert distance(models[client], row(method, client)) < 1e-10
        assert distance(starts[client], row(method, client, "start.")) < 1e-10


def test_a_large_alpha_is_fedavg(train):
    method, plain = train(partial(PFedGraph, alpha=1e9, strength=0.0), 3), train(FedAvg, 3)
    assert max(distance(plain.network, row(method, client, "start.")) for client in range(6)) < 1e-7


def test_a_small_alpha_is_local(train, pool_of):
    method, local = train(partial(PFedGraph, alpha=1e-9, strength=0.0), 3, pool_of(4)), train(Local, 3, pool_of(4))
    assert max(distance(row(local, client), row(method, client)) for client in range(6)) < 1e-12


def test_a_model_goes_each_way(train, pool_of):
    method = train(PFedGraph, 2, pool_of(4))
    entries = sum(tensor.numel() for tensor in method.network.parameters())
    assert method.accounting.ledger.up == method.accounting.ledger.down == 4 * 64 * entries
