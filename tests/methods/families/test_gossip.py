"""What D-PSGD and DePRL have in common, and what they are on the complete graph."""

from functools import partial

import numpy as np
import pytest
import torch
from fakes.loops import plain_rounds
from fakes.methods import built, distance, normed, row, rows, stepping, tensors
from fakes.quadratics import Quadratics, built_at, network, point
from plain_methods import PlainGossip

from pfl_lightning.callbacks import StageDoubling
from pfl_lightning.errors import PflError
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods import DPSGD, DePRL, DisPFL, FedAvg, FedRep
from pfl_lightning.server import Complete, ErdosRenyi, Message, Ring
from pfl_lightning.system import Participation
from pfl_lightning.system.speeds import FixedSpeeds
from pfl_lightning.tasks import Classification

WIDTH = 64  # bits of a number


pytestmark = pytest.mark.usefixtures("float64")


# On the complete graph


@pytest.mark.parametrize(
    ("gossip", "server"), [(DPSGD, FedAvg), (partial(DePRL, head_epochs=2), partial(FedRep, head_epochs=2))]
)
def test_on_the_complete_graph_it_is_the_method_with_a_server_and_equal_weights(gossip, server, ragged_data, train):
    """To rounding: the server adds its clients' models one after another, a mix is one matrix product."""
    start = tensors(built(server, ragged_data()).network)
    alone, served = train(partial(gossip, topology=Complete()), 3), train(server, 3, weighting="uniform")
    for name in served.shared:
        common = served.network.state_dict()[name]
        assert (common - start[name]).abs().max() > 1e-3
        assert (alone.clients.stack(name) - common).abs().max() < 1e-10 * (common - start[name]).abs().max()
    for name in served.clients.names:
        torch.testing.assert_close(alone.clients.stack(name), served.clients.stack(name), atol=1e-10, rtol=0)
    logged = alone.trainer.callback_metrics
    assert logged["consensus/before"] > 1e-4
    assert logged["consensus/after"] < 1e-20
    assert logged["consensus/spectral_gap"] == pytest.approx(1)


# Three rounds


@pytest.mark.parametrize(
    ("make", "part", "options"), [(DPSGD, "all", {"epochs": 2}), (DePRL, "body", {"head_epochs": 3})]
)
def test_three_rounds_on_a_ring_are_those_of_a_plain_loop(make, part, options, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(make, topology=Ring(), **options), data, momentum=0.0, weight_decay=0.0)
    start, mixed = tensors(method.network), method.parts[part]
    plain = plain_rounds(PlainGossip, method, data, 3, **options)
    fit(method, data, 3, bare=True)
    for client, state in plain.states.items():
        assert distance(state, row(method, client)) < 1e-12
    for name, stack in rows(method).items():
        assert (stack - stack.mean(0)).abs().max() > 1e-3
        expected = stack.mean(0) if name in mixed else start[name]
        torch.testing.assert_close(method.network.state_dict()[name], expected, atol=1e-12, rtol=0)


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
    before = rows(method)
    method.server_update({}, data.make_round(0))
    path = torch.tensor([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    for name, stack in rows(method).items():
        torch.testing.assert_close(stack[:3], torch.einsum("ij,j...->i...", path, before[name][:3]))
        assert torch.equal(stack[3:], before[name][3:])
        torch.testing.assert_close(method.network.state_dict()[name], stack[[0, 1, 2, 4]].mean(0))
    consensus = {
        name: torch.cat([stack[[0, 1, 2, 4]].flatten(1) for stack in state.values()], 1)
        for name, state in {"before": before, "after": rows(method)}.items()
    }
    for name, models in consensus.items():
        assert method._consensus[name] == pytest.approx(float((models - models.mean(0)).square().sum(1).mean()))


def test_under_stage_doubling_the_later_clients_bring_their_first_model(ragged_data, fit):
    data = ragged_data(participation=Participation())
    method = built(partial(DPSGD, topology=Complete()), data)
    start = rows(method)
    fit(method, data, 2, callbacks=[StageDoubling(n0=3, rounds_per_stage=2)], bare=True)
    fastest, late = torch.from_numpy(data.speeds.times(0, 6).argsort()).split(3)
    for name, stack in rows(method).items():
        assert torch.equal(stack[late], start[name][late])
        torch.testing.assert_close(stack[fastest], stack[fastest].mean(0).expand(3, *stack.shape[1:]))
        assert (stack[fastest] - start[name][fastest]).abs().max() > 1e-3


# Time and bits


class Given(FixedSpeeds):
    def draw(self, random, num_clients):
        return np.array([1.0, 1, 1, 5, 1, 1])


def test_a_slow_client_is_waited_for_by_its_neighbours_first(ragged_data, train):
    """On a ring of six, client 3 takes 5 s: after one round 2, 3 and 4 are ready at 5 s, after two 1 to 5 are late."""
    data = partial(ragged_data, speeds=Given(), communication_time=10.0)
    one, two = (train(DPSGD, rounds, data()).accounting.clock for rounds in (1, 2))
    assert one.ready == {0: 1, 1: 1, 2: 5, 3: 5, 4: 5, 5: 1}
    assert two.ready == {0: 2, 1: 6, 2: 10, 3: 10, 4: 10, 5: 6}
    assert (two.compute, two.total) == (10, 30)


@pytest.mark.parametrize(
    ("make", "part", "topology", "messages"), [(DPSGD, "all", Ring(), 12), (DePRL, "body", Complete(), 30)]
)
def test_every_link_carries_what_is_mixed_in_both_directions(make, part, topology, messages, train):
    method = train(partial(make, topology=topology), 2)
    size = sum(tensor.numel() for name, tensor in method.network.state_dict().items() if name in method.parts[part])
    assert (method.accounting.ledger.up, method.accounting.ledger.down) == (WIDTH * messages * size, 0)
    assert method.accounting.ledger.total == 2 * method.accounting.ledger.up


@pytest.mark.parametrize("make", [DPSGD, partial(DisPFL, density=1.0)])
def test_a_client_whose_model_is_dropped_is_still_sent_those_of_its_neighbours(make, ragged_data):
    """On a ring of six, client 3 sends nothing, and 2 and 4 do not know it."""
    data = ragged_data()
    data.setup()
    method, batch = built(make, data), data.make_round(0)
    bits = []
    for delivered in (batch, batch.drop(batch.examples.host_ids == 3)):
        up, down = (Traffic(Message(), method.engine.trainable) for _ in range(2))
        method.count_traffic(delivered, up, down)
        bits.append(up.volume.bytes)
    assert bits[0] * 10 == bits[1] * 12 > 0


# Errors of consensus


def test_the_errors_of_consensus_are_logged_before_and_after_mixing(train):
    method = train(partial(DePRL, topology=Ring()), 1)
    before, after, gap = (
        float(method.trainer.callback_metrics[f"consensus/{name}"]) for name in ("before", "after", "spectral_gap")
    )
    bodies = torch.cat([method.clients.stack(name).flatten(1) for name in method.parts["body"]], dim=1)
    assert after == pytest.approx(float((bodies - bodies.mean(0)).square().sum(1).mean()))
    assert after <= (1 - gap) ** 2 * before
    assert gap == pytest.approx(1 - 2 / 3)  # of six: 1 - (1 + 2 cos 60) / 3


@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_statistics_of_batch_norm_are_mixed_unless_they_are_local(batch_norm, ragged_data):
    method = DePRL(network=normed, topology=Complete(), batch_norm=batch_norm)
    method.build((5,), Classification().sized(3), 6)
    data = ragged_data()
    data.setup()
    for name in ("fc.weight", "head.weight", "norm.running_mean"):
        method.clients.stack(name).normal_()
    method.clients.stack("norm.num_batches_tracked").copy_(torch.arange(6))
    before = rows(method)
    stepping(method).server_update({}, data.make_round(0))
    changed = {name for name, stack in rows(method).items() if not stack.allclose(before[name])}
    assert changed == {"fc.weight"} | ({"norm.running_mean"} if batch_norm == "average" else set())


# Theory: linear speed-up


def test_the_variance_of_the_mean_falls_like_one_over_the_number_of_clients():
    """Noise of unit variance in the gradients of x^2 / 2, rate 0.1: the mean model's variance is 0.1 / 1.9 / clients.

    Paper: Xiong et al., DePRL, AAAI 2024, arXiv:2312.10815: the linear speed-up comes from averaging the noise.
    """
    variances = {}
    for clients in (4, 16):
        data = Quadratics([[0.0] * 100] * clients)  # a hundred independent numbers
        method = stepping(built_at(DPSGD(network=network, topology=Complete()), data, [0.0] * 100))
        batch, stack = data.make_round(0), method.clients.stack("fc.weight")
        random, means = torch.Generator().manual_seed(clients), []
        for step in range(160):
            stack -= 0.1 * (stack + torch.randn(stack.shape, generator=random))
            method.server_update({}, batch)
            means += [point(method)] if step >= 60 else []
        variances[clients] = np.var(means)
        assert variances[clients] == pytest.approx(0.1 / 1.9 / clients, rel=0.15)
    assert variances[4] / variances[16] == pytest.approx(4, rel=0.3)


# Bad input


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"topology": ErdosRenyi(0.0)},
            r"edge_probability: 0.0 is not possible with 6 clients: .*; allowed: about 0.3",
        ),
        ({"mixing": "given"}, r"model.mixing: given is not possible with links that have no weight"),
    ],
)
def test_graphs_that_do_not_fit_are_refused_before_training(options, line, ragged_data):
    data = ragged_data()
    data.setup()
    with pytest.raises(PflError, match=line):
        DPSGD(**options).build_for(data)
