"""What pfl compare says of run folders that pfl fit cannot have written."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from pfl_lightning.cli import main

ROUND_0 = b"\n0,0.0,0.0,"  # begins the first row of metrics.csv


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two rounds that were both evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    network = ["--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=6"]
    trainer = ["--trainer.max_steps=2", "--trainer.val_check_interval=1", "--trainer.enable_progress_bar=false"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pfl"])
        main(["fit", *network, *trainer, f"--trainer.default_root_dir={folder}"])
    return folder / "FedAvg-Digits" / "version_0"


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, "run"))


def compare(capsys, *args: str) -> tuple[int, str]:
    """Exit code and the only line on stderr."""
    with pytest.raises(SystemExit) as stop:
        main(["compare", *args])
    (line,) = capsys.readouterr().err.splitlines()
    assert not Path("comparison").exists(), "a refused command leaves nothing behind"
    return stop.value.code, line


def test_an_intact_run_is_compared(run, capsys):
    main(["compare", "run"])
    assert capsys.readouterr().err == ""
    assert Path("comparison/final.md").is_file()


def cells(line: int, **changes: str):
    """Change cells of a line of a table; line 1 has the names of the columns."""

    def change(content: bytes) -> bytes:
        rows = [row.split(",") for row in content.decode().splitlines()]
        for name, cell in changes.items():
            rows[line - 1][rows[0].index(name.replace("__", "/"))] = cell
        return "".join(",".join(row) + "\n" for row in rows).encode()

    return change


def setting(value: object, *keys: str):
    """Change a setting."""

    def change(content: bytes) -> bytes:
        settings = inner = yaml.safe_load(content)
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return yaml.safe_dump(settings).encode()

    return change


BINARY = bytes(range(256))


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.yaml", lambda _: BINARY, "was not written by pfl fit"),
        ("config.yaml", lambda _: b"!!python/object/apply:os.system ['touch comparison']", "was not written by pfl"),
        ("label.yaml", lambda _: b"name: FedRep", "was not written by pfl fit"),
        ("config.yaml", setting(None, "trainer"), "was not written by pfl fit"),
        ("config.yaml", setting("StageDoubling", "trainer", "callbacks"), "was not written by pfl fit"),
        ("metrics.csv", lambda _: b"", "No columns to parse"),
        ("metrics.csv", lambda _: BINARY, "can't decode byte"),
        ("metrics.csv", lambda table: table.replace(b"time/compute", b"time/computing"), "has no column time/compute"),
        ("metrics.csv", lambda table: table.replace(b"test/", b"tests/"), "has no test results"),
        ("metrics.csv", lambda table: table.replace(ROUND_0, b'\n"0,0.0,0.0,'), "EOF inside string"),
        ("metrics.csv", lambda table: table + table[table.find(b"\n") + 1 :], "rounds out of order"),
        ("metrics.csv", cells(4, time__compute="soon"), "could not convert string to float: 'soon'"),
        ("clients.csv", lambda table: table.replace(b",loss", b",losses"), "has no column loss"),
        ("clients.csv", lambda table: table[: table.find(b"\n") + 1], "has no test results"),
        ("clients.csv", cells(3, client="one"), "'one'"),
        ("clients.csv", lambda table: table.replace(b"\n1,test,global,2,", b"\n0,test,global,2,"), "has more clients"),
    ],
)
def test_a_broken_file_is_named(run, file, change, words, capsys):
    before = (run / file).read_bytes()
    assert change(before) != before
    (run / file).write_bytes(change(before))
    code, line = compare(capsys, "run")
    assert (code, line[: line.index(":", 15)]) == (1, "pfl: error: runs")
    assert f"run/{file}" in line or words == "has no test results"
    assert words in line


@pytest.mark.parametrize("file", ["config.yaml", "label.yaml", "metrics.csv", "clients.csv"])
def test_a_missing_file_is_named(run, file, capsys):
    (run / file).unlink()
    allowed = "folders with config.yaml, label.yaml, metrics.csv, clients.csv"
    assert compare(capsys, "run") == (1, f"pfl: error: runs: 'run' has no {file}; allowed: {allowed}")


@pytest.mark.parametrize("file", ["metrics.csv", "clients.csv"])
def test_an_evaluation_that_is_being_written_is_left_out(run, file, capsys):
    content = (run / file).read_bytes()
    (run / file).write_bytes(content[:-7])
    main(["compare", "run"])
    assert "stops after round 1 of 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], "runs: no such folder: 'nowhere'"),
        (["run/config.yaml"], "runs: no such folder: 'run/config.yaml'"),
        (["run", "--targets", "1.5"], "targets: 1.5 is not possible; allowed: accuracies between 0 and 1"),
        (["run", "--models", "globl"], "models: "),
        (["run", "--out", "run/config.yaml"], "out: cannot make the folder 'run/config.yaml' (File exists)"),
        (["run", "--out", "run/config.yaml/out"], "out: cannot make the folder 'run/config.yaml/out'"),
    ],
)
def test_wrong_arguments_are_refused(run, args, words, capsys):
    code, line = compare(capsys, *args)
    assert code == 1
    assert line.startswith(f"pfl: error: {words}")
