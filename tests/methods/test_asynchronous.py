"""Methods whose clients do not wait for each other."""

from functools import partial

import numpy as np
import pytest
from fakes.methods import built, distance, make_method, normed, rows, tensors
from fakes.quadratics import Quadratics, built_at, network, point
from methods.test_contract import FIRST, KINDS, METHODS, NETWORKS
from torch import nn
from torch.optim import SGD

from pfl_lightning import methods
from pfl_lightning.callbacks import StageDoubling
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Digits
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Ditto, FedAvg, FedBABU, FedRep, Sparsity
from pfl_lightning.models import MLP, Network
from pfl_lightning.server import DPAggregator, SecureAggregator
from pfl_lightning.system import Asynchronous, Constant, FixedExponential, Participation, Polynomial, UniformTime
from pfl_lightning.system.speeds import FixedSpeeds
from pfl_lightning.tree import Params

ROWS = {"FedAvg": FedAvg, "FedRep": partial(FedRep, head_epochs=2), "Ditto": Ditto}
some_methods = pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)
WHOLE_ROUNDS = {
    *("APPLE", "CFL", "DPSGD", "DeltaFL", "DePRL", "DisPFL", "FLoRA", "FedALT", "FedAMP", "FedAS", "FedCAC", "FedDBE"),
    *("FedDistill", "FedEM", "FedExLoRA", "FedFomo", "FedGH", "FedPAC", "FedTGP", "FlexLoRA", "Floco", "HetLoRA"),
    *("HeteroFL", "HeurFedAMP", "IFCA", "PFedGraph", "PFedHN", "PFedSim", "RoLoRA"),
}
TERMS_BEGIN_AS_ZERO = ("FedDyn", "FedProto", "MOON", "SCAFFOLD")
POSSIBLE = [FIRST[kind] for kind in KINDS if kind in FIRST and kind.__name__ not in WHOLE_ROUNDS]


@pytest.fixture
def in_flight(ragged_data):
    """Makes data of clients of unlike speeds that do not wait for each other."""
    return lambda *sizes, **options: ragged_data(
        participation=Asynchronous(*sizes, **options), speeds=FixedExponential(seed=3)
    )


def normed_images(shape, classes):
    return Network({"flat": nn.Flatten(), **dict(normed((64,), classes).named_children())})


@some_methods
@pytest.mark.parametrize("speeds", [UniformTime(), FixedExponential(seed=3)], ids=["equal", "ragged"])
def test_if_all_train_and_all_are_awaited_it_is_the_synchronous_run_bit_for_bit(make, speeds, ragged_data, fit):
    def run(participation):
        method = make_method(make, network=NETWORKS["mlp"], batch_size=4)
        data = ragged_data(participation=participation, speeds=speeds, communication_time=0.7)
        fit(method, data, 4, bare=True)
        return method

    plain, asynchronous = run(Participation()), run(Asynchronous(buffer=6))
    assert distance(plain, asynchronous) == 0
    assert plain.accounting.state_dict() == asynchronous.accounting.state_dict()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("exponent", [0.0, 0.5])
@pytest.mark.parametrize("uploads", ["models", "changes"])
@pytest.mark.parametrize(("buffer", "rate"), [(1, 0.6), (3, 1.5)])
def test_on_parabolas_it_has_a_closed_form(buffer, rate, uploads, exponent, fit):
    # a step of gradient descent on 1 / 2 |w - c|^2 goes 0.3 of the way to c
    centres, start = [[float(client), (-1.0) ** client] for client in range(7)], [5.0, -3.0]
    staleness = Polynomial(exponent) if exponent else Constant()
    participation = Asynchronous(4, buffer, uploads, staleness)
    data = Quadratics(centres, participation=participation, speeds=FixedExponential(seed=3))
    options = {"server_optimizer": partial(SGD, lr=rate), "weighting": "uniform", "weight_decay": 0.0}
    method = built_at(make_method(FedAvg, batch_size=9, lr=0.3, network=network, **options), data, start)
    fit(method, data, 25, bare=True)
    models = [start]
    for index in range(25):
        batch, now = data.make_round(index), models[-1]
        examples, targets = batch.examples, []
        inputs, outputs = examples.gather(examples.positions), examples.targets(examples.positions)
        own = (inputs * outputs[..., None]).sum(1) / 2  # inputs are unit vectors times the root of 2
        for centre, began in zip(own.tolist(), batch.arrivals.began.tolist(), strict=True):
            from_, share = models[began], (1 + index - began) ** -exponent
            trained = [w + 0.3 * (c - w) for w, c in zip(from_, centre, strict=True)]
            origin = from_ if uploads == "changes" else now
            targets.append([x + share * (t - o) for x, t, o in zip(now, trained, origin, strict=True)])
        mean = [sum(column) / buffer for column in zip(*targets, strict=True)]
        models.append([x - rate * (x - m) for x, m in zip(now, mean, strict=True)])
    assert point(method) == pytest.approx(models[-1], abs=1e-12)
    assert any(batch.arrivals.began.min() < index for index, batch in enumerate(map(data.make_round, range(25))))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", POSSIBLE)
def test_clients_of_several_versions_train_at_once_as_each_alone_from_its_own(name, in_flight, monkeypatch, fit):
    alike = []

    def compared(cohort, received, key):
        together = usual(cohort, received, key)
        if not received.shared and received.own:
            batch = data.make_round(method.accounting.clock.rounds)
            for place, version in enumerate(batch.arrivals.began.tolist()):
                sent = method.versions.trees.get(version, method.broadcast())
                row = {each: received.own[each][place : place + 1] for each in method.clients.names}
                alone = usual(cohort.rows(place, place + 1), Params(sent, row), key)[0].own
                alike.append(max(float((together[0].own[n][place] - alone[n][0]).abs().max()) for n in alone))
        return together

    data = in_flight(5, 4)  # of 3 classes
    method = METHODS[name](network=NETWORKS["mlp"], batch_size=4, backend="sequential", sparsity=Sparsity())
    usual = method.local_update
    monkeypatch.setattr(method, "local_update", compared)
    fit(method, data, 4, bare=True)
    assert len(alike) > 3 or not method.broadcast()
    assert max(alike, default=0) < 1e-12


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in TERMS_BEGIN_AS_ZERO else [pytest.mark.slow]) for name in POSSIBLE]
)
def test_backends_and_chunks_agree_after_three_updates_to_1e_10_of_them(name, in_flight, fit):
    data = in_flight(5, 4, dropout=0.2)

    def run(backend, chunk_size):
        method = METHODS[name](network=NETWORKS["mlp"], batch_size=4, backend=backend, chunk_size=chunk_size)
        method.build(data.input_shape, data.task, data.num_clients, data.seed)
        start = tensors(method)
        fit(method, data, 3, bare=True)
        return start, tensors(method)

    start, whole = run("sequential", None)
    assert distance(whole, run("batched", 2)[1]) < 1e-10 * distance(start, whole)
    batches = [data.make_round(index) for index in range(3)]
    assert len(batches[0].dropped)
    assert any(len(set(batch.arrivals.shares[2:].tolist())) > 1 for batch in batches)
    assert any((batch.arrivals.shares[:2] != batch.arrivals.shares[2:]).any() for batch in batches)


@pytest.mark.slow
@some_methods
def test_resume_with_clients_in_flight_is_exact_bit_for_bit(make, in_flight, resumed):
    make_data = partial(in_flight, 5, 2, dropout=0.1, max_staleness=3)
    straight, method, _ = resumed(partial(make, network=NETWORKS["mlp"], batch_size=4), make_data, 9, 5)
    assert distance(straight, method) == 0
    assert straight.accounting.state_dict() == method.accounting.state_dict()
    assert straight.trainer.callback_metrics == method.trainer.callback_metrics
    assert straight.versions.trees.keys() == method.versions.trees.keys()
    (data := make_data()).setup()
    assert data.make_round(5).arrivals.began.min() < 5, "clients are in flight"


def test_what_clients_keep_moves_when_they_upload_and_not_when_they_are_dropped(in_flight, fit):
    data = in_flight(3, 2, dropout=0.3)
    method = built(FedRep, data)
    before = rows(method)["fc3.weight"]
    fit(method, data, 2, bare=True)
    batches = [data.make_round(index) for index in range(2)]
    heard = {client for batch in batches for client in batch.examples.ids.tolist()}
    dropped = {client for batch in batches for client in batch.dropped.tolist()}
    assert dropped - heard
    moved = (rows(method)["fc3.weight"] != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert {*moved} == heard


def test_what_is_logged_and_sent(in_flight, fit):
    data = in_flight(5, 2, dropout=0.3)
    method = FedAvg(network=NETWORKS["mlp"], local=LocalTraining(batch_size=4))
    logged = fit(method, data, 8, bare=True).callback_metrics
    batches = [data.make_round(index) for index in range(8)]
    staleness = 7 - batches[-1].arrivals.began.double()
    assert float(logged["staleness/mean"]) == staleness.mean()
    assert float(logged["staleness/largest"]) == staleness.max() > 0
    assert float(logged["system/versions"]) == len(method.versions.trees)
    assert float(logged["system/updates_per_second"]) == pytest.approx(8 / method.accounting.clock.total)
    heard = {client for batch in batches for client in batch.examples.ids.tolist()}
    assert float(logged["system/heard"]) == pytest.approx(len(heard) / 6)
    bits = 32 * sum(parameter.numel() for parameter in method.parameters())
    participants = 16 + sum(len(batch.dropped) for batch in batches)
    assert participants > 16
    # an upload has the loss beside the model
    assert method.accounting.ledger.total == 16 * (bits + 32) + participants * bits


def test_updates_that_take_no_time_have_no_rate(ragged_data, fit):
    class Immediate(FixedSpeeds):
        def draw(self, random, num_clients):
            return np.zeros(num_clients)

    data = ragged_data(participation=Asynchronous(5, 2), speeds=Immediate())
    logged = fit(
        FedAvg(network=NETWORKS["mlp"], local=LocalTraining(batch_size=4)), data, 2, bare=True
    ).callback_metrics
    assert np.isnan(float(logged["system/updates_per_second"]))


def test_a_part_that_nobody_trains_stays_as_it_is_and_is_not_sent(in_flight, fit):
    data = in_flight(5, 2)
    method = built(FedBABU, data)
    start = tensors(method.network)
    fit(method, data, 6, bare=True)
    assert distance({name: start[name] for name in method.parts["head"]}, method.network) == 0
    trained = sum(tensor.numel() for name, tensor in start.items() if name in method.parts["body"])
    assert method.aggregator.bytes == 12 * 4 * (trained + 1)


def test_statistics_become_those_of_the_clients_though_parameters_take_their_changes(fit, monkeypatch):
    last, usual = [], FedAvg.local_update

    def local_update(self, cohort, received, key):
        trained = usual(self, cohort, received, key)
        last[:] = [{name: rows[0] for name, rows in trained[0].own.items()}]
        return trained

    monkeypatch.setattr(FedAvg, "local_update", local_update)
    participation = Asynchronous(20, 1, staleness=Constant())
    data = Digits(participation=participation, max_samples=16, val_fraction=0.0)
    method = FedAvg(network=normed_images, local=LocalTraining(batch_size=8), server_optimizer=partial(SGD, lr=0.1))
    fit(method, data, 20, bare=True)
    assert data.make_round(19).arrivals.began < 19
    found = method.network.state_dict()
    statistics = {name: found[name] for name, _ in method.network.named_buffers()}
    assert distance(statistics, last[0]) < 1e-6
    assert distance(found, last[0]) > 1e-3


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in FIRST], ids=lambda kind: kind.__name__)
def test_methods_whose_rule_is_about_whole_rounds_are_refused(kind, ragged_data):
    data, method = ragged_data(participation=Asynchronous(buffer=2)), METHODS[FIRST[kind]](network=NETWORKS["mlp"])
    method.sparsity = Sparsity()
    data.setup("fit")
    if kind.__name__ not in WHOLE_ROUNDS:
        method.build_for(data)
        return
    line = rf"^data\.participation: Asynchronous is not possible with {kind.__name__}, .*; allowed: Participation$"
    with pytest.raises(PflError, match=line):
        method.build_for(data)


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (methods.SCAFFOLD, {"uploads": "models"}, r"data\.participation\.uploads: models .* SCAFFOLD.* changes$"),
        (partial(FedAvg, aggregator=SecureAggregator()), {}, r"model\.aggregator: SecureAggregator .* Aggregator$"),
        (
            partial(FedAvg, aggregator=DPAggregator(noise_multiplier=0.0), weighting="uniform"),
            {},
            r"model\.aggregator: DPAggregator is not possible with Asynchronous",
        ),
    ],
    ids=["models", "secure", "private"],
)
def test_what_does_not_go_with_it_is_refused(make, options, line, ragged_data):
    data = ragged_data(participation=Asynchronous(buffer=2, **options))
    data.setup("fit")
    with pytest.raises(PflError, match=line):
        make_method(make, network=partial(MLP, hidden=(5,))).build_for(data)


def test_stage_doubling_is_refused(ragged_data, fit):
    with pytest.raises(PflError, match=r"trainer\.callbacks: StageDoubling does not work with Asynchronous"):
        fit(FedAvg(), ragged_data(participation=Asynchronous(buffer=2)), 2, callbacks=[StageDoubling(n0=2)])
