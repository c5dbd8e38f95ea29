import importlib
import json
from functools import partial
from pathlib import Path

import pytest
import torch

from pfl_lightning.models import MLP

NETWORK = partial(MLP, hidden=(8,))
KEYS = {"workload", "backend", "seconds", "ratio_to_plain", "spread"}


@pytest.fixture
def benchmark(monkeypatch):
    # by name, so that the fresh processes of the population workload find it as well
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small work is slower on more
    yield importlib.import_module("benchmark")
    torch.set_num_threads(threads)


@pytest.fixture
def tiny(benchmark):
    return benchmark.Workload(NETWORK, (1, 4, 4), cohort=3, samples=20, head_epochs=2)


@pytest.mark.parametrize("head_epochs", [0, 2])
def test_plain_loop_and_sequential_backend_do_the_same_when_there_is_no_order_of_batches(benchmark, head_epochs):
    torch.set_default_dtype(torch.float64)
    workload = benchmark.Workload(NETWORK, (1, 4, 4), cohort=3, samples=20, head_epochs=head_epochs, batch_size=20)
    plain, ours = benchmark.contestants(workload, ["sequential"])
    start = plain.state()
    for _ in range(3):
        plain.round()
        ours["sequential"].round()
    for ours_now, plain_now, before in zip(ours["sequential"].state(), plain.state(), start, strict=True):
        torch.testing.assert_close(ours_now, plain_now, rtol=0, atol=1e-10)
        assert not len(before) or (plain_now - before).norm() > 1e-2


def test_records(benchmark, tiny):
    records = benchmark.measure("tiny", tiny, ["sequential", "auto"], repeats=3)
    assert [record["backend"] for record in records] == ["plain", "sequential", "auto"]
    for record in records:
        assert record.keys() == KEYS
        assert record["spread"][0] <= record["seconds"] <= record["spread"][1]
    assert records[0]["ratio_to_plain"] == 1.0


def test_ratio_is_the_median_over_the_turns(benchmark):
    record = benchmark.record("w", "auto", [1.0, 9.0, 4.0], [1.0, 3.0, 8.0])
    assert record == {"workload": "w", "backend": "auto", "seconds": 4.0, "ratio_to_plain": 1.0, "spread": [1.0, 9.0]}


def test_contestants_take_turns(benchmark):
    order = []
    assert benchmark.in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2).keys() == {"a", "b"}
    assert order == ["a", "b", "a", "b"]


@pytest.mark.parametrize(("lr", "complaint"), [(0.1, "moves shared and kept"), (float("nan"), "moves a client by")])
def test_a_backend_that_does_other_work_is_not_timed(benchmark, tiny, monkeypatch, lr, complaint):
    phase = benchmark.Method.phase
    monkeypatch.setattr(benchmark.Method, "phase", lambda self, part, epochs, _=None: phase(self, part, 3 * epochs, lr))
    with pytest.raises(RuntimeError, match=complaint):
        benchmark.check_same_work(tiny, ["sequential"])
    assert torch.get_default_dtype() == torch.float32


def test_a_client_that_does_not_train_is_noticed(benchmark, tiny, monkeypatch):
    def lazy(self, cohort, received, key):
        trained, losses = local(self, cohort, received, key)
        for name, rows in trained.own.items():
            rows[1] = received.owned([name], len(cohort)).own[name][1]
        return trained, losses

    local = benchmark.FedRep.local
    monkeypatch.setattr(benchmark.FedRep, "local", lazy)
    with pytest.raises(RuntimeError, match="sequential moves a client by 0"):
        benchmark.check_same_work(tiny, ["sequential"])


def test_population_in_fresh_processes(benchmark, tiny):
    (record,) = benchmark.measure_population(tiny, [50], repeats=1, threads=1)
    assert record.keys() == KEYS | {"peak_mebibytes"}
    assert (record["workload"], record["backend"], record["ratio_to_plain"]) == ("population-50", "auto", None)
    assert 50 < record["peak_mebibytes"] < 5000  # torch alone takes more than 50


def test_command_line_writes_the_records_and_a_table(benchmark, tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(benchmark.WORKLOADS, "fedavg-mlp", tiny)
    benchmark.main("fedavg-mlp", ["sequential"], repeats=1, threads=1, json=tmp_path / "records.json")
    records = json.loads((tmp_path / "records.json").read_text())
    assert [(record["workload"], record["backend"]) for record in records] == [
        ("fedavg-mlp", "plain"),
        ("fedavg-mlp", "sequential"),
    ]
    assert capsys.readouterr().out == benchmark.table(records) + "\n"


@pytest.mark.parametrize(
    "arguments",
    [{"workloads": "nope"}, {"workloads": ["fedavg-mlp", "nope"]}, {"backends": "nope"}, {"json": Path("no/nope")}],
)
def test_wrong_command_line_is_one_line(benchmark, arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        benchmark.main(**arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nope is not possible; allowed: " in error
