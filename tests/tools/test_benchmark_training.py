import sys
from dataclasses import replace
from functools import partial

import benchmark
import pytest
import torch
from benchmarks import population, timing, training
from benchmarks.population import Measurement, measure_population, population_record
from benchmarks.workloads import WORKLOADS, RandomClients, ragged_counts, random_bert
from fakes.forked import SERVER

from pfl_lightning.methods import Method

pytestmark = pytest.mark.usefixtures("bench")


def as_method(workload, method, **options):
    """The same work by another method, of which FedRep's head epochs are no option."""
    rates = {name: value for name, value in workload.options.items() if name != "head_epochs"}
    return replace(workload, method=method, options={**rates, **options})


TRAINING = [name for name in WORKLOADS if name not in benchmark.CONTESTS]


def small(name):
    """A workload as small as it can be; a batch holds all samples of any client."""
    workload = WORKLOADS[name].with_options(batch_size=6)
    shape = {1: (1, 4, 4), 3: (3, 32, 32)}.get(workload.input_shape[0], (5, 7))
    cohort = 4 if workload.method in ("DPSGD", "DePRL") else 3
    if name == "fedavg-resnet18":
        shape = (3, 9, 9)
        cohort = 2
    if name == "fedavg-cnn":
        shape = (1, 16, 16)
        workload = workload.with_options(lr=0.05)
    if name.startswith("families"):
        shape = (1, 16, 16)
        cohort = 5  # of four networks
    if name == "lora-bert":
        pytest.importorskip("peft")
        workload = replace(workload, network=partial(random_bert, depth=2, width=8, heads=2))
    if "copy_lr" in workload.options:  # so that copies go half the way
        workload = workload.with_options(copy_lr=workload.options["copy_lr"] * 0.5 / 0.075)
    samples = (3, 6, 4) if workload.method == "DeltaFL" or name == "ragged-mlp" else 6
    stages = (1, 2, 3) if len(workload.stages) > 1 else (None,)
    classes = shape[1] if len(shape) == 2 else {"multilabel-mlp": 2}.get(name, 10)  # some samples have no known label
    return replace(workload, input_shape=shape, cohort=cohort, samples=samples, stages=stages, classes=classes)


@pytest.mark.parametrize("name", TRAINING)
def test_plain_loop_and_sequential_backend_do_the_same_when_there_is_no_order_of_batches(name):
    torch.set_default_dtype(torch.float64)
    workload = small(name)
    plain, ours = training.contestants(workload, ["sequential"])
    start = plain.state()
    for _ in range(1 if workload.in_flight else 2):  # later uploads are of older models, which the plain loop has not
        plain.turn()
        ours["sequential"].turn()
    for ours_now, plain_now, before in zip(ours["sequential"].state(), plain.state(), start, strict=True):
        torch.testing.assert_close(ours_now, plain_now, rtol=0, atol=1e-9)
        assert not len(before) or (plain_now - before).norm() > 1e-2


OTHER_TASKS = ["multilabel-mlp", "forecast-mlp", "segment-unet", "next-char-gru"]


@pytest.mark.parametrize(("name", "fewest"), [*zip(OTHER_TASKS, (0, None, 1, 3), strict=True)])
def test_targets_are_those_of_the_task_and_some_are_unknown(name, fewest):
    workload = small(name)
    task = workload.task().sized(workload.classes)
    targets = RandomClients(workload).load()[0].targets
    task.check(targets)
    amounts = task.amounts(targets)  # known labels, pictures with a pixel, or the characters that have a target
    assert (amounts if amounts is None else amounts.min()) == fewest


@pytest.mark.parametrize("name", OTHER_TASKS)
def test_a_loss_of_another_size_is_other_work(name, monkeypatch):
    workload = small(name)
    training.check_same_work(workload, ["auto", "batched"])
    criterion = training.CRITERIA[workload.task.__name__]
    monkeypatch.setitem(training.CRITERIA, workload.task.__name__, lambda *batch: 2 * criterion(*batch))
    with pytest.raises(RuntimeError, match="moves shared and kept"):
        training.check_same_work(workload, ["auto"])


def test_a_turn_of_stage_doubling_has_a_round_for_every_cohort(tiny):
    workload = replace(WORKLOADS["srpfl-mlp"], network=tiny.network, input_shape=(1, 4, 4), samples=1)
    plain, ours = training.contestants(workload, ["auto"])
    assert [len(clients) for clients in plain.stages] == [5, 10, 20]
    assert set(plain.stages[0]) < set(plain.stages[1]) < set(plain.stages[2])
    assert plain.samples == 35
    ours["auto"].turn()
    assert ours["auto"].method.accounting.clock.rounds == 3


def test_ragged_clients_hold_what_was_drawn(tiny):
    counts = ragged_counts(100)
    assert counts == ragged_counts(100)
    assert 20 <= min(counts) < max(counts) <= 600
    workload = replace(tiny, samples=(5, 2, 9))
    data = RandomClients(workload)
    assert data.tables["train"].counts.tolist() == [5, 2, 9]
    assert sorted(data.tables["train"].flat[:-1].tolist()) == list(range(16))
    assert training.contest(workload, ["auto"]).samples == 16


@pytest.mark.parametrize("head_epochs", [0, 2])
def test_operations_of_the_plain_loop_are_those_of_its_layers(head_epochs, tiny):
    plain, _ = training.contestants(tiny if head_epochs else as_method(tiny, "FedAvg"), [])
    first, last = 16 * 8, 8 * 10  # weights; each costs a product and a sum per sample, forwards and for its gradient
    if head_epochs:
        # on the head: forwards, and its gradient; on the body: forwards, the body's gradient, and back through the head
        per_sample = head_epochs * 2 * (first + 2 * last) + 2 * (2 * first + 2 * last)
    else:
        per_sample = 2 * (2 * first + 3 * last)  # no gradient of the inputs of the first layer
    assert timing.operations(plain.turn) == 60 * per_sample


def test_records_have_the_seconds_and_the_share_of_the_peak(tiny):
    contest = training.contest(tiny, ["sequential", "auto"])
    records = timing.measure("tiny", contest, repeats=1)
    assert [record["backend"] for record in records] == ["plain", "sequential", "auto"]
    for record in records:
        assert record["spread"] == 2 * [record["seconds"]]
        assert record["samples"] == 60
        rate = timing.operations(contest.actions["plain"]) / record["seconds"] / 1e9
        assert record["peak_share"] == pytest.approx(rate / record["peak_gflops"])
    assert records[0]["ratio_to_plain"] == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak cannot be forgotten")
def test_records_have_the_memory_that_a_turn_adds():
    contest = timing.Contest({"plain": lambda: None, "auto": lambda: torch.ones(64 << 18)}, samples=1, dense=False)
    plain, auto = (record["peak_mebibytes"] for record in timing.measure("w", contest, repeats=1))
    assert (plain, auto) == (pytest.approx(0, abs=5), pytest.approx(64, abs=5))


def test_ratio_is_the_median_over_the_turns():
    record = timing.record("w", "auto", [1.0, 9.0, 4.0], [1.0, 3.0, 8.0])
    assert record == {"workload": "w", "backend": "auto", "seconds": 4.0, "ratio_to_plain": 1.0, "spread": [1.0, 9.0]}


def test_contestants_take_turns():
    order = []
    actions = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    assert timing.in_turns(actions, 2, "bar").keys() == {"a", "b"}
    assert order == ["a", "b", "a", "b"]


@pytest.mark.parametrize("lr", [0.1, float("nan")])
def test_a_backend_that_does_other_work_is_not_timed(tiny, monkeypatch, lr):
    phase = Method.phase
    monkeypatch.setattr(Method, "phase", lambda self, part, epochs, _=None: phase(self, part, 3 * epochs, lr))
    with pytest.raises(RuntimeError, match="moves shared and kept"):
        training.check_same_work(tiny, ["sequential"])
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("conformity", [0.1, 0.5, 0.8])
def test_the_tail_of_the_plain_loop_holds_more_than_its_share_and_without_its_best_client_no_more(conformity, tiny):
    workload = as_method(tiny, "DeltaFL", conformity=conformity)
    plain, _ = training.contestants(replace(workload, cohort=20, samples=ragged_counts(20)), [])
    loop = plain.loop
    tail = sorted(loop.tail(range(20)), key=loop.loss)
    assert all(loop.loss(client) < loop.loss(tail[0]) for client in set(range(20)) - set(tail))
    held = loop.count(*tail) / plain.samples
    assert held - loop.count(tail[0]) / plain.samples <= conformity < held


@pytest.mark.slow
def test_populations_in_processes_of_their_own(tiny, monkeypatch):
    monkeypatch.setattr(population, "get_context", lambda _: SERVER)
    workloads = {size: replace(tiny, clients=size) for size in (50, 1000)}
    small, large = measure_population("tiny", workloads, repeats=1, threads=1)
    assert (small["workload"], small["backend"], small["ratio_to_plain"]) == ("tiny-50", "auto", None)
    assert small["ratio_to_smallest"] == 1
    assert small["more_than_smallest_mebibytes"] == small["bank_more_than_smallest_mebibytes"] == 0
    assert large["ratio_to_smallest"] == pytest.approx(large["seconds"] / small["seconds"])
    # a head is 8 x 10 weights and 10 biases of 4 bytes
    assert large["bank_mebibytes"] == 1000 * 90 * 4 / 2**20
    assert 50 < small["peak_mebibytes"] < 5000  # torch alone takes more than 50


def test_what_a_population_takes_is_compared_with_the_smallest():
    smallest = [Measurement(1.0, 200, 10), Measurement(2.0, 220, 10)]
    record = population_record("nine", [Measurement(2.0, 300, 30), Measurement(6.0, 340, 30)], smallest)
    assert (record["seconds"], record["ratio_to_smallest"]) == (4, 2.5)
    assert (record["peak_mebibytes"], record["more_than_smallest_mebibytes"]) == (320, 110)
    assert (record["bank_mebibytes"], record["bank_more_than_smallest_mebibytes"]) == (30, 20)
