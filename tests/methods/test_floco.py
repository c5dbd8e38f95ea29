from functools import partial

import pytest
import torch
from fakes.loops import descended_at, features, participants
from fakes.methods import assert_weighted_mean, built, distance, rows, stepping, tensors
from plain_methods import samples_of
from torch.nn import functional as F

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, Floco
from pfl_lightning.seeding import random_bits
from pfl_lightning.server import principal_coordinates, spread_on_simplex
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")

SMALL = partial(Floco, endpoints=3, uniform_rounds=2, radius=0.4)


def numbers(own, key):
    """What is drawn for each sample of a client: one number for the distance, and one for each endpoint."""
    count = own.longest
    return ((random_bits((*key, "point"), own.ids, 4 * count)[0] >> 39) / 2**24).view(count, 4)


def uniform_points(drawn):
    """Points of the simplex, from normed exponential numbers."""
    lengths = -(drawn[:, 1:] * (1 - 2**-20) + 2**-21).log()
    return lengths / lengths.sum(1, keepdim=True)


def within(points, centre, drawn):
    """The points, moved to the centre until the sum of absolute differences is at most 0.4 times what was drawn."""
    away = points - centre
    shares = (0.4 * drawn[:, 0] / away.abs().sum(1)).clamp(max=1)
    return centre + away * shares[:, None]


@pytest.mark.parametrize("has_region", [False, True])
def test_a_round_is_a_plain_loop_over_mini_batches_at_random_points(has_region, ragged_data, fit, backend):
    data = ragged_data(val_fraction=0.0)
    data.setup()
    method = built(SMALL, data, weight_decay=0.0, backend=backend, epochs=2)
    if has_region:
        method.clients.stack("region").fill_(2)
        method.clients.stack("fc3.centre").copy_(torch.rand(6, 3).softmax(1))
    start, centres = tensors(method.network), rows(method)["fc3.centre"]

    def plainly(client, own):
        model, key, (inputs, targets) = start, (1, "train", 0), samples_of(own)
        drawn = numbers(own, key)
        points = uniform_points(drawn)
        if has_region:
            points = within(points, centres[client], drawn)
            assert ((points - centres[client]).abs().sum(1) <= 0.4 + 1e-12).all()
        assert (points >= 0).all()
        torch.testing.assert_close(points.sum(1), torch.ones(len(points)))

        def loss(model, batch):
            endpoints = [model["fc3.weight"], *model["fc3.others"]]
            weight = sum(share * each for share, each in zip(points[batch[0]], endpoints, strict=True))
            return F.cross_entropy(F.linear(features(model, inputs[batch]), weight, model["fc3.bias"]), targets[batch])

        return descended_at(model, loss, own, (*key, "all"), epochs=2)

    clients = [plainly(client, own) for client, own in participants(data, 0)]
    fit(method, data, 1, bare=True)
    assert_weighted_mean(method, start, clients, data.make_round(0).examples.counts)
    assert distance({"": rows(method)["fc3.centre"]}, {"": centres}) == 0


def test_regions_are_those_of_clients_that_took_part_and_of_their_last_updates(ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=3))
    method = built(SMALL, data)
    fit(method, data, 2, bare=True)
    kept = rows(method)
    took_part = kept["region"] == 2
    assert sorted({*data.make_round(0).examples.ids.tolist(), *data.make_round(1).examples.ids.tolist()}) == (
        took_part.nonzero()[:, 0].tolist()
    )
    moved = torch.cat([kept[f"change.fc3.{name}"].flatten(1) for name in ("weight", "others")], 1)[took_part]
    assert (moved.abs().sum(1) > 0).all()
    expected = spread_on_simplex(principal_coordinates(moved @ moved.T, 3))
    torch.testing.assert_close(kept["fc3.centre"][took_part], expected)
    assert len(expected.unique(dim=0)) == len(expected), "each has its own"
    assert (kept["fc3.centre"][~took_part] == 1 / 3).all()
    assert (kept["region"][~took_part] == 0).all()


def test_regions_are_given_once_and_later_if_their_round_is_lost(ragged_data):
    data = ragged_data(val_fraction=0.0)
    data.setup()
    method = stepping(built(SMALL, data))
    centre, mean = method.clients.stack("fc3.centre"), tensors(method.network)
    for index, region, moves in ((0, 1, False), (2, 1, True), (3, 2, False)):
        before = centre.clone()
        assert (method.clients.stack("region")[1:] == (region if index else 0)).all()
        method.clients.stack("region")[1:] = region
        method.clients.stack("change.fc3.weight").normal_()
        method.server_update(mean, data.make_round(index))
        assert ((centre != before).any(1)[1:] == moves).all()
    assert (centre[0] == 1 / 3).all()
    assert method.clients.stack("region").tolist() == [0, 2, 2, 2, 2, 2]


def test_a_client_without_a_region_goes_on_as_before(ragged_data):
    data = ragged_data()
    data.setup()
    method = built(SMALL, data)
    examples = data.make_round(0).examples
    before = method.points(examples, method.received(examples.ids), (1,))
    method.clients.stack("region").copy_(torch.tensor([0, 1, 2, 2, 2, 2]))
    after = method.points(examples, method.received(examples.ids), (1,))
    same = (before == after).flatten(1).all(1)
    assert examples.ids[same].sort().values.tolist() == [0, 1]


def test_principal_coordinates_are_those_of_a_singular_value_decomposition():
    vectors = torch.randn(5, 9)
    centred = vectors - vectors.mean(0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    found = principal_coordinates(vectors @ vectors.T, 7)
    torch.testing.assert_close(found[:, :4].abs(), (left * values)[:, :4].abs())
    torch.testing.assert_close(found @ found.T, centred @ centred.T)
    assert (found.amax(0) >= -found.amin(0)).all()
    assert (found[:, 4:] == 0).all()
    assert (principal_coordinates(torch.ones(1, 1), 2) == 0).all()


def test_points_are_spread_as_far_as_the_best_scale_allows():
    coordinates = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.5]])
    found = spread_on_simplex(coordinates)
    torch.testing.assert_close(found.sum(1), torch.ones(3))

    def energy(points):
        return sum((points[i] - points[j]).square().sum().clamp(min=1e-8) ** -1 for i, j in [(0, 1), (0, 2), (1, 2)])

    def projected(scale):  # of two numbers: half of their difference beside a half each, within [0, 1]
        first = (0.5 + (coordinates[:, 0] - coordinates[:, 1]) / scale / 2).clamp(0, 1)
        return torch.stack([first, 1 - first], 1)

    best = min((projected(2 * step / 1000) for step in range(1, 1001)), key=energy)
    torch.testing.assert_close(found, best)
    assert (spread_on_simplex(torch.zeros(3, 4)) == 0.25).all(), "nothing is known"


def test_with_one_endpoint_it_is_fedavg(train):
    one, plain = train(partial(Floco, endpoints=1, uniform_rounds=1), 3), train(FedAvg, 3)
    assert distance(tensors(plain.network), tensors(one.network)) < 1e-12


@pytest.mark.parametrize(("rounds", "centre"), [(2, 0), (3, 3)])
def test_clients_receive_all_endpoints_and_later_the_centre_of_their_region(rounds, centre, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(SMALL, data)
    fit(method, data, rounds, bare=True)
    model = 256 * 8 + 8 + 8 * 5 + 5 + 3 * (5 * 3) + 3
    assert method.accounting.ledger.down == 64 * data.num_clients * (model + centre), "in the last round"
    assert method.accounting.ledger.up == 64 * data.num_clients * (model + 1), "and each client's loss"


def test_clients_are_evaluated_at_their_centre_and_at_that_of_the_simplex(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(SMALL, data)
    fit(method, data, 2, bare=True)
    inputs = torch.randn(4, 1, 16, 16)
    model = tensors(method.network)
    for kind, centre in (("stored", rows(method)["fc3.centre"][4]), ("global", torch.full((3,), 1 / 3))):
        endpoints = torch.stack([model["fc3.weight"], *model["fc3.others"]])
        weight = (centre[:, None, None] * endpoints).sum(0)
        expected = F.linear(features(model, inputs), weight, model["fc3.bias"])
        torch.testing.assert_close(method.client(4, kind)(inputs), expected)


def test_a_head_of_two_layers_is_refused(ragged_data):
    with pytest.raises(PflError, match=r"^model\.head must be one linear layer, got fc2, fc3"):
        built(partial(SMALL, head=2), ragged_data())
