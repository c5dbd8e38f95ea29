from functools import partial
from math import log

import pytest
import torch
from fakes.loops import participants, trained
from fakes.methods import built, distance, normed, row, rows, tensors

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, Local, PFedSim
from pfl_lightning.models import LinearNetwork, UNet
from pfl_lightning.server import similarity_attention
from pfl_lightning.tasks import Segmentation

pytestmark = pytest.mark.usefixtures("float64")


def evaluated(method, client, model="personal"):
    return method.eval_model(model, None, method.received(torch.tensor([client])), ()).client(0)


def likeness(one, other):
    """The mean over classes of the cosine between their weights."""
    cosines = [w @ v / (w.norm() * v.norm()) for w, v in zip(one, other, strict=True)]
    return max(0.0, float(sum(cosines) / len(cosines)))


def test_weights_are_those_by_hand():
    similarities = torch.eye(4)
    similarities[0] = torch.tensor([0.9999, 0.8, 0.0, 0.5])
    expected = torch.tensor([9.2103, 1.6094, 0.0, 0.6931])
    torch.testing.assert_close(similarity_attention(similarities)[0], expected / expected.sum(), atol=1e-5, rtol=0)
    torch.testing.assert_close(expected / expected.sum(), torch.tensor([0.8, 0.1398, 0, 0.0602]), atol=1e-4, rtol=0)
    assert similarities[1, 1] == 1, "and the argument stays as it is"


def test_unlike_clients_count_for_nothing_and_equal_ones_as_much_as_oneself():
    unlike = torch.eye(3) - 0.2 * (1 - torch.eye(3))
    assert torch.equal(similarity_attention(unlike), torch.eye(3))
    torch.testing.assert_close(similarity_attention(torch.ones(3, 3)), torch.full((3, 3), 1 / 3))
    assert similarity_attention(torch.ones(1, 1)).tolist() == [[1.0]]


def test_rounds_of_half_of_the_clients_are_a_plain_loop(pool_of, fit, backend):
    """The warm-up ends after two rounds; then clients join one by one."""
    data = pool_of(3)
    method = built(partial(PFedSim, warmup_rounds=2), data, weight_decay=0.0, epochs=2, lr=0.7, backend=backend)
    common, models, starts, likes, joined = tensors(method.network), {}, {}, [], []
    fit(method, data, 5, bare=True)
    for index in range(5):
        found, counts = {}, {}
        for client, own in participants(data, index):
            start = starts.get(client, common)
            found[client], _ = trained(method.network, start, own, (1, "train", index, "all"), epochs=2, lr=0.7)
            counts[client] = float(own.counts)
        if index < 2:
            total = sum(counts.values())
            common = {name: sum(counts[i] / total * model[name] for i, model in found.items()) for name in common}
            continue
        for i, model in found.items():
            others = {j: likeness(model["fc3.weight"], other["fc3.weight"]) for j, other in found.items() if j != i}
            likes += others.values()
            weights = {j: -log(1 - alike) for j, alike in {**others, i: 0.9999}.items()}
            total = sum(weights.values())
            mixed = {name: sum(weights[j] * found[j][name] for j in found) / total for name in common}
            starts[i] = mixed | {name: model[name] for name in ("fc3.weight", "fc3.bias")}
        models |= found
        joined.append(len(models))
    assert 0.0 == min(likes) < sorted(likes)[-6] < max(likes) < 0.9999
    assert joined[0] < joined[-1], "some clients join later"
    assert distance(common, method.network) < 1e-10
    for client in range(6):
        assert distance(models.get(client, common), evaluated(method, client)) < 1e-9
        assert distance(common, evaluated(method, client, "global")) < 1e-10
    for client, start in starts.items():
        body = {name: start[name] for name in method.parts["body"]}
        assert distance(body, row(method, client, "start.")) < 1e-9


def test_a_warm_up_without_end_is_fedavg(train, pool_of):
    method, plain = train(partial(PFedSim, warmup_rounds=3), 3, pool_of(4)), train(FedAvg, 3, pool_of(4))
    assert distance(plain.network, method.network) == 0
    assert max(distance(plain.network, evaluated(method, client)) for client in range(6)) == 0
    assert plain.accounting.ledger.up == method.accounting.ledger.up
    assert plain.accounting.ledger.down == method.accounting.ledger.down


def test_a_client_alone_goes_on_from_its_own_model(train, pool_of):
    """As one whose head is like nobody's."""
    method, local = (train(make, 3, pool_of(1)) for make in (partial(PFedSim, warmup_rounds=0), Local))
    assert max(distance(row(local, client), evaluated(method, client)) for client in range(6)) < 1e-12


def test_of_two_classes_heads_are_compared_by_their_one_row(classes_of, fit):
    method = built(partial(PFedSim, warmup_rounds=0), data := classes_of(2), network=LinearNetwork)
    fit(method, data, 2, bare=True)
    directions = rows(method)["directions"]
    weight = rows(method, "personal.")["head.weight"]
    assert weight.shape == (6, 1, 2)
    torch.testing.assert_close(directions, weight / weight.norm(dim=2, keepdim=True))
    shares = similarity_attention(method.clients.inner_products(["directions"]))
    bodies = rows(method, "personal.")["body.weight"]
    torch.testing.assert_close(rows(method, "start.")["body.weight"], torch.tensordot(shares, bodies, 1))


def test_a_head_of_zeros_is_like_no_other(ragged_data):
    method = built(PFedSim, data := ragged_data())
    data.setup()
    with torch.no_grad():
        method.network.get_parameter("fc3.weight").zero_()
    examples = data.make_round(0).examples
    method.engine.train = lambda cohort, received, phase, key: (received, torch.zeros(len(cohort)))
    after, _ = method.local_update(examples, method.received(examples.ids), ())
    assert not after.own["directions"].any()


def test_statistics_of_batch_norm_are_mixed_with_the_body(ragged_data, fit):
    class Flat(ragged_data):
        input_shape = (256,)

    method = built(partial(PFedSim, warmup_rounds=0), data := Flat(val_fraction=0.0), network=normed)
    fit(method, data, 1, bare=True)
    shares = similarity_attention(method.clients.inner_products(["directions"]))
    own = rows(method, "personal.")["norm.running_mean"]
    torch.testing.assert_close(rows(method, "start.")["norm.running_mean"], shares @ own)
    assert method.network.get_buffer("norm.running_mean").eq(0).all()


def test_a_head_that_is_not_linear_is_one_line():
    with pytest.raises(PflError, match=r"^model.head must begin with a linear layer, got head.weight$"):
        PFedSim(network=UNet).build((1, 8, 8), Segmentation().sized(3), 2)
