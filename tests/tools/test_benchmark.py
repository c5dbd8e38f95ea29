import json
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import benchmark
import pytest
import torch
from benchmarks import report, timing, training
from benchmarks.workloads import POPULATIONS, WORKLOADS, Workload

from pfl_lightning.models import MLP

KEYS = {"workload", "backend", "seconds", "ratio_to_plain", "spread", "samples", "device", "peak_share", "peak_gflops"}
PEER = {"workload": "peers-mlp", "backend": "some", "seconds": 2.0, "ratio_to_plain": 0.5, "spread": [1.0, 3.0]}
ABSENT = {**PEER, "seconds": None, "ratio_to_plain": None, "spread": None, "reason": "needs Python 3.90"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(timing, "PEAK_SIZE", 64)
    monkeypatch.setattr(benchmark, "keep_freed_memory", lambda: None)  # it would hold for all tests
    monkeypatch.setattr(benchmark.sys, "path", list(benchmark.sys.path))
    shown = warnings.showwarning
    yield
    warnings.showwarning = shown


@pytest.fixture
def tiny():
    return Workload(partial(MLP, hidden=(8,)), (1, 4, 4), cohort=3, samples=20, head_epochs=2)


def test_command_line_writes_the_records_a_table_and_a_picture(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(WORKLOADS, "fedavg-mlp", tiny)
    written, picture = tmp_path / "records.json", tmp_path / "ratios.png"
    options = (
        f"--workloads fedavg-mlp --backends [sequential] --repeats 1 --threads 1 --json {written} --figure {picture}"
    )
    benchmark.run(options.split())
    records = json.loads(written.read_text())
    assert [(row["workload"], row["backend"]) for row in records] == [
        ("fedavg-mlp", "plain"),
        ("fedavg-mlp", "sequential"),
    ]
    assert all(row.keys() == KEYS for row in records)
    output = capsys.readouterr().out
    assert output == f"{report.header(records, 1, 1)}\n\n{report.table(records)}\n"
    assert "1 repeats, 1 thread, torch " in output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["data-loading", "evaluation"])
def test_what_does_not_train_is_measured_too(name, tiny, monkeypatch, tmp_path):
    monkeypatch.setitem(WORKLOADS, name, tiny)
    benchmark.main(name, ["auto"], repeats=1, threads=1, json=tmp_path / "records.json")
    records = json.loads((tmp_path / "records.json").read_text())
    assert [(row["workload"], row["backend"]) for row in records] == [(name, "plain"), (name, "auto")]
    assert all(row["samples"] == 60 for row in records)
    assert all((row["peak_share"] is None) == (name == "data-loading") for row in records)


def test_a_backend_that_cannot_run_the_network_is_left_out_with_a_line(capsys):
    workload = replace(WORKLOADS["fedavg-resnet18"], input_shape=(3, 9, 9))
    backends = ["auto", "sequential", "batched"]
    able = benchmark.suited("w", backends, lambda backend: training.method_of(workload, backend))
    assert able == ["auto", "sequential"]
    error = capsys.readouterr().err
    assert error.startswith("w: batched is left out: model.backend: batched is not possible with BatchNorm")
    assert error.count("\n") == 1


def test_peers_are_measured_with_our_own_program(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr(benchmark.rounds, "measure_peers", lambda *call: calls.append(call) or [PEER, ABSENT])
    versions = {"versions": {"torch": "2.0"}, "deviation": 1e-5}
    monkeypatch.setitem(PEER, "versions", versions["versions"])
    monkeypatch.setitem(PEER, "deviation", versions["deviation"])
    written = tmp_path / "records.json"
    options = f"--workloads [] --peers true --peers_root {tmp_path} --repeats 2 --threads 1 --json {written}"
    benchmark.run(options.split())
    ours = Path(benchmark.__file__).parent / "peers" / "ours.py"
    assert calls == [(tmp_path, list(benchmark.rounds.PEERS), ours, 2, 1)]
    assert ours.is_file()
    assert json.loads(written.read_text()) == [PEER, ABSENT]
    lines = capsys.readouterr().out.splitlines()
    assert "| peers-mlp | some | 2.000 | 0.50 | 1.000 .. 3.000 |  |  |" in lines
    assert "| peers-mlp | some | - |  |  |  |  |" in lines
    assert lines[-2:] == [
        "some: torch 2.0; weights within 1e-05 of the update",
        "some: not measured: needs Python 3.90",
    ]


def test_the_help_names_every_workload():
    assert all(f"{name}" in benchmark.main.__doc__ for name in [*WORKLOADS, *POPULATIONS])


@pytest.mark.parametrize(
    "options",
    [
        "--workloads nope",
        "--workloads [fedavg-mlp,nope]",
        "--backends nope",
        "--json no/nope",
        "--figure no/nope.png",
        "--figure nope.doc",
        "--nope 1",
        "--accelerator tpu",
        "--variants [nope]",
        "--accelerator gpu --peers true --peers_root .",
        "--repeats nope",
        "--tune nope",
        "--peers true",
        "--peers [nope] --peers_root .",
        "--tune true --model nope",
        "--tune true --nope 1",
        "--tune=true --repeats nope",
        "--tune true --trainer.devices 4",
        "--tune true --data.num_clients 2 --data.partition ClassShards --data.partition.classes_per_client 1",
    ],
)
def test_wrong_command_line_is_one_line(options, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        benchmark.run(options.split())
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "allowed" in output.err or "no such option" in output.err
    assert not list(tmp_path.iterdir())


def test_tune_in_a_file_is_refused(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(tune=True)
    assert "on the command line" in capsys.readouterr().err


def test_what_stands_around_tune_is_for_fit():
    assert benchmark.options_of_fit(["--repeats", "3", "--tune", "true", "--model", "FedAvg"]) == [
        "--repeats",
        "3",
        "--model",
        "FedAvg",
    ]
    assert benchmark.options_of_fit(["--tune=True", "--data.root=a=b c"]) == ["--data.root=a=b c"]
    assert benchmark.options_of_fit(["--tune", "--config", "FILE"]) == ["--config", "FILE"]
    assert benchmark.options_of_fit(["--tune", "false", "--repeats", "3"]) is None
    assert benchmark.options_of_fit(["--tune", "false"]) is None
    assert benchmark.options_of_fit(["--workloads", "tune"]) is None


def test_table():
    rows = [
        {**PEER, "workload": "w", "backend": "auto", "peak_share": 0.254, "peak_gflops": 100.0},
        {**PEER, "ratio_to_plain": None, "ratio_to_smallest": 1.25, "peak_mebibytes": 1234.4},
    ]
    assert report.table(rows).splitlines() == [
        "| workload | backend | seconds | ratio | spread | share of peak | peak MiB |",
        "|---|---|---|---|---|---|---|",
        "| w | auto | 2.000 | 0.50 | 1.000 .. 3.000 | 25% |  |",
        "| peers-mlp | some | 2.000 | 1.25 | 1.000 .. 3.000 |  | 1234 |",
    ]
    assert report.notes(rows) == ""
    assert f"torch {torch.__version__}. Peak: 100 GFLOP/s, a float32 product of two" in report.header(rows, 1, 1)


def test_some_peers(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr(benchmark.rounds, "measure_peers", lambda _, names, *others: calls.append(names) or [])
    benchmark.run(["--workloads", "[]", "--peers", "[fedlab, jax_scan]", "--peers_root", str(tmp_path)])
    assert calls == [["jax_scan", "fedlab"]]
