import json
import sys
from dataclasses import replace
from pathlib import Path

import benchmark
import pytest
import torch
from benchmarks import report, training, voting
from benchmarks.variants import VARIANTS
from benchmarks.workloads import POPULATIONS, WORKLOADS

TIMES, SHARES = {"seconds", "ratio_to_plain", "spread"}, {"samples", "peak_share", "peak_gflops"}
KEYS = {"workload", "backend", "device", *TIMES, *SHARES, *["peak_mebibytes"] * (sys.platform == "linux")}
PEER = {"workload": "peers-mlp", "backend": "some", "seconds": 2.0, "ratio_to_plain": 0.5, "spread": [1.0, 3.0]}
ABSENT = {**PEER, "seconds": None, "ratio_to_plain": None, "spread": None, "reason": "needs Python 3.90"}


def test_command_line_writes_the_records_a_table_and_a_picture(bench, tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(WORKLOADS, "fedavg-mlp", tiny)
    written, picture = tmp_path / "records.json", tmp_path / "ratios.png"
    chosen = "--workloads fedavg-mlp --backends [sequential] --repeats 1 --threads 1"
    bench.run(f"{chosen} --json {written} --figure {picture}".split())
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
def test_what_does_not_train_is_measured_too(name, bench, tiny, monkeypatch):
    monkeypatch.setitem(WORKLOADS, name, tiny)
    records = bench.measure_workload(name, ["auto"], repeats=1, threads=1)
    assert [(row["workload"], row["backend"], row["samples"]) for row in records] == [
        *((name, backend, 60) for backend in ("plain", "auto"))
    ]
    assert all((row["peak_share"] is None) == (name == "data-loading") for row in records)


def test_votes_are_measured_beside_the_mean(bench, tiny, monkeypatch):
    monkeypatch.setitem(WORKLOADS, "votes", replace(tiny, cohort=15))
    records = bench.measure_workload("votes", ["auto"], repeats=1, threads=1)
    assert [row["backend"] for row in records] == ["plain", *voting.VOTES]
    assert {row["samples"] for row in records} == {15 * 20}


def test_a_backend_that_cannot_run_the_network_is_left_out_with_a_line(capsys):
    workload = replace(WORKLOADS["fedavg-resnet18"], input_shape=(3, 9, 9))
    backends = ["auto", "sequential", "batched"]
    able = benchmark.suited("w", backends, lambda backend: training.method_of(workload, backend))
    assert able == ["auto", "sequential"]
    error = capsys.readouterr().err
    assert error.startswith("w: batched is left out: model.backend: batched is not possible with BatchNorm")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "names"), [("true", list(benchmark.rounds.PEERS)), ("[fedjax, jax_scan]", ["jax_scan", "fedjax"])]
)
def test_peers_are_measured_with_our_own_program(asked, names, bench, monkeypatch, tmp_path, capsys):
    calls = []
    measured = [{**PEER, "versions": {"torch": "2.0"}, "deviation": 1e-5}, ABSENT]
    monkeypatch.setattr(bench.rounds, "measure_peers", lambda *call: calls.append(call) or measured)
    bench.run(["--workloads=[]", f"--peers={asked}", f"--peers_root={tmp_path}", "--repeats=2", "--threads=1"])
    ours = Path(bench.__file__).parent / "peers" / "ours.py"
    assert calls == [(tmp_path, names, ours, 2, 1)]
    assert ours.is_file()
    lines = capsys.readouterr().out.splitlines()
    assert "| peers-mlp | some | 2.000 | 0.50 | 1.000 .. 3.000 |  |  |" in lines
    assert "| peers-mlp | some | - |  |  |  |  |" in lines
    assert lines[-2:] == [
        "some: torch 2.0; weights within 1e-05 of the update",
        "some: not measured: needs Python 3.90",
    ]


def test_the_help_names_everything_that_can_be_measured():
    names = [*WORKLOADS, *POPULATIONS, *VARIANTS, *benchmark.rounds.PEERS]
    assert [name for name in names if name not in benchmark.main.__doc__] == []


@pytest.mark.parametrize(
    "options",
    [
        "--workloads [fedavg-mlp,nope]",
        "--json no/nope",
        "--figure nope.doc",
        "--json .",
        "--nope 1",
        "--repeats nope",
        "--accelerator gpu --peers true --peers_root .",
        "--peers true",
        "--tracks.pfllib . --peers_root .",
        "--tracks.nope . --peers_root .",
        "--tracks.pfllib .",
    ],
)
def test_wrong_command_line_is_one_line(options, bench, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        bench.run(options.split())
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())


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
