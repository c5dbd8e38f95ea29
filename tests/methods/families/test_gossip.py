"""What D-PSGD and DePRL have in common, and what they are on the complete graph."""

from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from fakes.methods import built, stepping
from fakes.quadratics import Quadratics, built_at
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.callbacks import StageDoubling
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DPSGD, DePRL, FedAvg, FedRep, Sparsity
from pfl_lightning.models import LogisticRegression, Network
from pfl_lightning.seeding import permutations
from pfl_lightning.server import Complete, ErdosRenyi, GraphFile, Ring
from pfl_lightning.system import Participation
from pfl_lightning.system.speeds import FixedSpeeds

WIDTH = 64  # bits of a number


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


def rows_of(method, names):
    return {name: method.clients.stack(name).clone() for name in names}


# On the complete graph


@pytest.mark.parametrize(
    ("gossip", "server"), [(DPSGD, FedAvg), (partial(DePRL, head_epochs=2), partial(FedRep, head_epochs=2))]
)
def test_on_the_complete_graph_it_is_the_method_with_a_server_and_equal_weights(gossip, server, ragged_data, fit):
    """To rounding: the server adds its clients' models one after another, a mix is one matrix product."""
    alone = built(partial(gossip, topology=Complete()), ragged_data())
    served = built(server, ragged_data(), weighting="uniform")
    start = {name: tensor.clone() for name, tensor in alone.network.state_dict().items()}
    for number, method in enumerate((alone, served)):
        fit(method, ragged_data(), 3, str(number))
    for name in served.shared:
        common = served.network.state_dict()[name]
        assert (common - start[name]).abs().max() > 1e-3
        for row in alone.clients.stack(name):
            assert (row - common).abs().max() < 1e-10 * (common - start[name]).abs().max()
    for name in served.clients.names:
        torch.testing.assert_close(alone.clients.stack(name), served.clients.stack(name), atol=1e-10, rtol=0)
    before, after, gap = (
        float(alone.trainer.callback_metrics[f"consensus/{name}"]) for name in ("before", "after", "spectral_gap")
    )
    assert before > 1e-4
    assert after < 1e-20
    assert gap == pytest.approx(1)


# Three rounds by hand


def sgd(network, model, names, epochs, key, own):
    """Plain SGD with rate 0.1 on some tensors of a client's model, which it changes."""
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    leaves = {name: tensor.clone().requires_grad_(name in names) for name, tensor in model.items()}
    optimizer = torch.optim.SGD([leaves[name] for name in names], lr=0.1)
    for epoch in range(epochs):
        order = permutations((*key, "order", epoch), own.ids, own.counts, len(targets))[0]
        for batch in order.split(4):
            optimizer.zero_grad()
            F.cross_entropy(functional_call(network, leaves, inputs[batch]), targets[batch]).backward()
            optimizer.step()
    model.update({name: tensor.detach() for name, tensor in leaves.items()})


@pytest.mark.parametrize("kind", ["DPSGD", "DePRL"])
def test_three_rounds_on_a_path_are_those_of_a_plain_loop(kind, ragged_data, fit, tmp_path):
    """Metropolis weights on the path 0 - 1 - ... - 5: a third for each neighbour, the rest for oneself."""
    nx.write_edgelist(nx.path_graph(6), tmp_path / "path.txt", data=False)
    options = {"topology": GraphFile(tmp_path / "path.txt"), "momentum": 0.0, "weight_decay": 0.0}
    make = partial(DPSGD, epochs=2) if kind == "DPSGD" else partial(DePRL, head_epochs=3)
    data = ragged_data(val_fraction=0.0)
    method = built(make, data, **options)
    head, body = sorted(method.parts["head"]), sorted(method.parts["body"])
    models = [{name: tensor.clone() for name, tensor in method.network.state_dict().items()} for _ in range(6)]
    fit(method, data, 3)
    for index in range(3):
        examples = data.make_round(index).examples
        for row, client in enumerate(examples.ids.tolist()):
            own, key = examples.rows(row, row + 1), (1, "train", index)
            if kind == "DPSGD":
                sgd(method.network, models[client], [*head, *body], 2, (*key, "all"), own)
            else:
                sgd(method.network, models[client], head, 3, (*key, "head", 0), own)
                sgd(method.network, models[client], body, 1, (*key, "body", 0), own)
        before = [dict(model) for model in models]
        for client, model in enumerate(models):
            neighbours = [other for other in (client - 1, client + 1) if 0 <= other < 6]
            for name in [*body, *(head if kind == "DPSGD" else ())]:
                mine = (1 - len(neighbours) / 3) * before[client][name]
                model[name] = mine + sum(before[other][name] for other in neighbours) / 3
    for name, rows in rows_of(method, method.parts["all"]).items():
        expected = torch.stack([model[name] for model in models])
        assert (rows - expected).abs().max() < 1e-12
        assert (rows - rows.mean(0)).abs().max() > 1e-3


class Product(Network):
    """The scalar model x * body * head."""

    def __init__(self, input_shape, num_classes):
        super().__init__({"body": nn.Linear(1, 1, bias=False), "head": nn.Linear(1, 1, bias=False)})
        for parameter in self.parameters():
            nn.init.ones_(parameter)


def test_the_body_takes_its_step_with_the_new_head(fit):
    """Losses (head * body - y)^2 / 2 with y = 2, 0, 4, from 1 and 1: two steps of 0.1 on the head, one on the body."""
    data = Quadratics([[2.0], [0.0], [4.0]])
    method = DePRL(
        network=Product, topology=Complete(), head_epochs=2, momentum=0.0, weight_decay=0.0, lr=0.1, eval_epochs=0
    )
    fit(method, data, 1)
    assert method.clients.stack("head.weight").flatten().tolist() == pytest.approx([1.19, 0.81, 1.57])
    mean = (1.09639 + 0.93439 + 1.38151) / 3  # with the old head it would be (1.1 + 0.9 + 1.3) / 3
    assert method.clients.stack("body.weight").flatten().tolist() == pytest.approx(3 * [mean], abs=1e-5)


# Who takes part


def test_participants_mix_over_the_links_among_themselves(ragged_data, fit):
    """Of a ring of six, 0, 1, 2 and 4 take part: 0 - 1 - 2 is a path, and 4 is alone."""

    class Some(Participation):
        def cohort(self, seed, round_index, counts, times):
            return [4, 2, 0, 1], times[[4, 2, 0, 1]]

    method = stepping(built(DPSGD, ragged_data()))
    data = ragged_data(participation=Some())
    data.setup()
    for name in method.clients.names:
        method.clients.stack(name).normal_()
    before = rows_of(method, method.clients.names)
    method.server_update({}, data.make_round(0))
    path = torch.tensor([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    for name, rows in rows_of(method, method.clients.names).items():
        torch.testing.assert_close(rows[:3], torch.einsum("ij,j...->i...", path.to(rows), before[name][:3]))
        assert torch.equal(rows[3:], before[name][3:])
        torch.testing.assert_close(method.network.state_dict()[name], rows[[0, 1, 2, 4]].mean(0))


def test_under_stage_doubling_the_later_clients_bring_their_first_model(ragged_data, fit):
    data = ragged_data(participation=Participation())
    method = built(partial(DPSGD, topology=Complete()), data)
    start = rows_of(method, method.clients.names)
    fit(method, data, 2, callbacks=[StageDoubling(n0=3, rounds_per_stage=2)])
    fastest, late = torch.from_numpy(data.speeds.times(0, 6).argsort()).split(3)
    for name, rows in rows_of(method, method.clients.names).items():
        assert torch.equal(rows[late], start[name][late])
        torch.testing.assert_close(rows[fastest], rows[fastest].mean(0).expand(3, *rows.shape[1:]))
        assert (rows[fastest] - start[name][fastest]).abs().max() > 1e-3


# Time and bits


class Given(FixedSpeeds):
    def draw(self, random, num_clients):
        return np.array([1.0, 1, 1, 5, 1, 1])


def test_a_slow_client_is_waited_for_by_its_neighbours_first(ragged_data, fit):
    """On a ring of six, client 3 takes 5 s: after one round 2, 3 and 4 are ready at 5 s, after two 1 to 5 are late."""
    method = built(DPSGD, ragged_data())
    fit(method, ragged_data(speeds=Given(), communication_time=10.0), 1)
    assert method.accounting.clock.ready == {0: 1, 1: 1, 2: 5, 3: 5, 4: 5, 5: 1}
    method = built(DPSGD, ragged_data())
    fit(method, ragged_data(speeds=Given(), communication_time=10.0), 2, "two")
    assert method.accounting.clock.ready == {0: 2, 1: 6, 2: 10, 3: 10, 4: 10, 5: 6}
    assert (method.accounting.clock.compute, method.accounting.clock.total) == (10, 30)


@pytest.mark.parametrize(("topology", "messages"), [(Ring(), 12), (Complete(), 30)])
@pytest.mark.parametrize(("make", "part"), [(DPSGD, "all"), (DePRL, "body")])
def test_every_link_carries_what_is_mixed_in_both_directions(make, part, topology, messages, ragged_data, fit):
    method = built(partial(make, topology=topology), ragged_data())
    fit(method, ragged_data(), 2)
    size = sum(tensor.numel() for name, tensor in method.network.state_dict().items() if name in method.parts[part])
    assert (method.accounting.ledger.up, method.accounting.ledger.down) == (WIDTH * messages * size, 0)
    assert method.accounting.ledger.total == 2 * method.accounting.ledger.up


# Errors of consensus


def test_the_errors_of_consensus_are_logged_before_and_after_mixing(ragged_data, fit):
    method = built(partial(DePRL, topology=Ring()), ragged_data())
    trainer = fit(method, ragged_data(), 1)
    logged = {
        name: float(trainer.callback_metrics[f"consensus/{name}"]) for name in ("before", "after", "spectral_gap")
    }
    bodies = torch.cat([method.clients.stack(name).flatten(1) for name in method.parts["body"]], dim=1)
    assert logged["after"] == pytest.approx(float((bodies - bodies.mean(0)).square().sum(1).mean()))
    assert logged["after"] <= (1 - logged["spectral_gap"]) ** 2 * logged["before"]
    assert logged["spectral_gap"] == pytest.approx(1 - 2 / 3)  # of six: 1 - (1 + 2 cos 60) / 3


def normed(input_shape, num_classes):
    return Network({"fc": nn.Linear(*input_shape, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, num_classes)})


@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_statistics_of_batch_norm_are_mixed_unless_they_are_local(batch_norm, ragged_data):
    method = DePRL(network=normed, topology=Complete(), batch_norm=batch_norm)
    method.build((5,), 3, 6)
    data = ragged_data()
    data.setup()
    for name in ("fc.weight", "head.weight", "norm.running_mean"):
        method.clients.stack(name).normal_()
    method.clients.stack("norm.num_batches_tracked").copy_(torch.arange(6))
    before = rows_of(method, method.clients.names)
    stepping(method).server_update({}, data.make_round(0))
    changed = {name for name, rows in rows_of(method, before).items() if not rows.allclose(before[name])}
    assert changed == {"fc.weight"} | ({"norm.running_mean"} if batch_norm == "average" else set())


# Theory: linear speed-up


def test_the_variance_of_the_mean_falls_like_one_over_the_number_of_clients():
    """Noise of unit variance in the gradients of x^2 / 2, rate 0.1: the mean model's variance is 0.1 / 1.9 / clients.

    Paper: Xiong et al., DePRL, AAAI 2024, arXiv:2312.10815: the linear speed-up comes from averaging the noise.
    """
    variances = {}
    for clients in (4, 16):
        data = Quadratics([[0.0]] * clients)
        method = stepping(
            built_at(DPSGD(network=partial(LogisticRegression, bias=False), topology=Complete()), data, [0.0])
        )
        batch, rows = data.make_round(0), method.clients.stack("fc.weight")
        random, means = torch.Generator().manual_seed(clients), []
        for step in range(6000):
            rows -= 0.1 * (rows + torch.randn(rows.shape, generator=random))
            method.server_update({}, batch)
            means += [method.network.fc.weight.item()] if step >= 200 else []
        variances[clients] = np.var(means)
        assert variances[clients] == pytest.approx(0.1 / 1.9 / clients, rel=0.15)
    assert variances[4] / variances[16] == pytest.approx(4, rel=0.3)


# Bad input


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"topology": ErdosRenyi(0.0)},
            r"edge_probability: 0.0 is not possible with 6 clients: .*; allowed: about 0.3",
        ),
        ({"mixing": "given"}, r"model.mixing: given is not possible with links that have no weight"),
    ],
)
def test_graphs_that_do_not_fit_are_refused_before_training(options, complaint, ragged_data):
    data = ragged_data()
    data.setup()
    with pytest.raises(PflError, match=complaint):
        DPSGD(**options).build_for(data)


def test_a_body_is_needed_and_nothing_is_pruned(ragged_data):
    with pytest.raises(PflError, match=r"DePRL needs a body"):
        DePRL(network=LogisticRegression).build((5,), 3, 6)
    with pytest.raises(PflError, match=r"model.sparsity.prune: True is not possible with DPSGD"):
        DPSGD(sparsity=Sparsity(prune=True))


def test_new_clients_begin_with_the_mean_body(ragged_data, fit):
    method = built(DePRL, ragged_data())
    fit(method, ragged_data(), 2)
    for name in method.parts["body"]:
        torch.testing.assert_close(method.network.state_dict()[name], method.clients.stack(name).mean(0))
