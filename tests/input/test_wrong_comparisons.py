"""What pfl compare says of run folders that pfl fit cannot have written."""

import re
import shutil
from errno import ENOENT, ENOSPC
from functools import partial
from os import strerror
from pathlib import Path

import pytest

from pfl_lightning.cli import main

ROUND_0 = b"\n0,0.0,0.0,"  # begins the first row of metrics.csv


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two rounds that were both evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    network = ["--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=6"]
    trainer = ["--trainer.max_steps=2", "--trainer.val_check_interval=1", "--trainer.enable_progress_bar=false"]
    main(["fit", *network, *trainer, f"--trainer.default_root_dir={folder}"])
    return folder / "FedAvg-Digits" / "version_0"


@pytest.fixture
def run(in_an_empty_folder, trained):
    return Path(shutil.copytree(trained, "run"))


@pytest.fixture
def compared(run, monkeypatch, capsys):
    """Compares the run without pictures, and returns its stderr."""

    def compare(*runs):
        capsys.readouterr()
        main(["compare", "run", *runs])
        assert Path("comparison/final.md").is_file()
        return capsys.readouterr().err

    monkeypatch.setattr("pfl_lightning.report.write_pictures", lambda *_: None)  # drawing takes seconds
    return compare


def test_an_intact_run_is_compared(compared):
    assert compared() == ""


BINARY = bytes(range(256))


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.yaml", lambda _: BINARY, "was not written by pfl fit"),
        ("config.yaml", lambda _: b"!!python/object/apply:os.system ['touch comparison']", "was not written by pfl"),
        ("label.yaml", lambda _: b"name: FedRep", "was not written by pfl fit"),
        *(
            ("label.yaml", partial(re.sub, rb"\b%b: .*" % key, b"%b: %b" % (key, value)), "was not written by pfl fit")
            for key, value in [
                (b"method", b"3"),
                (b"global", b"[1]"),
                (b"unit", b"3"),
                (b"scale", b"x"),
                (b"digits", b"x"),
                (b"doubling", b"3"),
                (b"is_baseline", b"3"),
            ]
        ),
        ("config.yaml", lambda text: text.replace(b"\ntrainer:", b"\ntrainers:"), "was not written by pfl fit"),
        ("metrics.csv", lambda _: b"", ""),
        ("metrics.csv", lambda _: BINARY, ""),
        ("metrics.csv", lambda table: table.replace(b"time/compute", b"time/computing"), "has no column time/compute"),
        ("metrics.csv", lambda table: table.replace(b"test/", b"tests/"), "has no test results"),
        ("metrics.csv", lambda table: table.replace(ROUND_0, b'\n"0,0.0,0.0,'), ""),
        ("metrics.csv", lambda table: table.replace(ROUND_0, b"\n0,soon,0.0,"), "'soon'"),
        ("clients.csv", lambda table: table.replace(b",loss", b",losses"), "has no column loss"),
        ("clients.csv", lambda table: table[: table.find(b"\n") + 1], "has no test results"),
        ("clients.csv", lambda table: table.replace(b"\n0,test,global,1,", b"\n0,test,global,one,"), "'one'"),
    ],
)
def test_a_broken_file_is_named(run, file, change, words, refused):
    before = (run / file).read_bytes()
    assert change(before) != before
    (run / file).write_bytes(change(before))
    code, line = refused("compare", "run")
    assert code == 1
    assert line.startswith("runs: ")
    assert f"run/{file}" in line or words == "has no test results"
    assert words in line


@pytest.mark.parametrize("file", ["config.yaml", "label.yaml", "metrics.csv", "clients.csv"])
def test_a_missing_file_is_named(run, file, refused):
    (run / file).unlink()
    what = "give run folders, such as runs/FedRep-Digits/version_0"
    assert refused("compare", "run") == (1, f"runs: cannot read 'run/{file}' ({strerror(ENOENT)}); {what}")


@pytest.mark.parametrize("file", ["metrics.csv", "clients.csv"])
def test_an_evaluation_that_is_being_written_is_left_out(run, file, compared):
    content = (run / file).read_bytes()
    (run / file).write_bytes(content[:-7])
    notes = compared()
    assert "stops after round 1 of 2" in notes
    assert ("without round 2, which its clients.csv lacks" in notes) == (file == "clients.csv")


@pytest.fixture
def short(run):
    """The settings of a copy of the run without its last round."""
    shutil.copytree(run, "short")
    for file in ("metrics.csv", "clients.csv"):
        table = Path("short", file).read_bytes()
        Path("short", file).write_bytes(table[: table.index(b"\n2,") + 1])
    return Path("short/config.yaml")


def test_seeds_that_end_after_different_rounds_get_a_note(short, compared):
    short.write_text(short.read_text().replace("seed_everything: 1", "seed_everything: 2"))
    assert "note: final results of FedAvg are of round 1, the last that all its seeds have\n" in compared("short")


def test_seeds_of_different_code_get_a_note(run, compared):
    shutil.copytree(run, "other")
    config = Path("other/config.yaml")
    config.write_text(config.read_text().replace("seed_everything: 1", "seed_everything: 2"))
    for folder, code in ((run, "12"), ("other", "34")):
        label = Path(folder, "label.yaml")
        label.write_text(label.read_text().replace("code: null", f"code: {{my_method: '{code}'}}"))
    assert compared("other") == "pfl: note: FedAvg: its code has changed between 'run' and 'other'\n"


def test_runs_that_end_after_different_rounds_get_a_note(short, compared):
    short.write_text(short.read_text().replace("max_steps: 2", "max_steps: 1"))
    assert compared("short").startswith("pfl: note: final results are of different rounds, such as round 1 of FedAvg, ")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "runs: a value is missing"),
        (["run", "--target", "0.6"], 2, "--target: no such option; did you mean --targets?"),
        (["nowhere"], 1, "runs: cannot read 'nowhere/config.yaml' ("),
        (["run/config.yaml"], 1, "runs: cannot read 'run/config.yaml/config.yaml' ("),
        (["run", "run"], 1, "seed_everything: 1 in "),
        (["run", "--targets", "60"], 1, "targets must be accuracies between 0 and 1, got 60"),
        (["run", "--models", "finetuned", "globl"], 1, "models: globl is in none of the runs; allowed: global, fi"),
        (["run", "--out=run/mine"], 1, "out: 'run/mine/figures.md' was not written by pfl compare; choose another fo"),
        (["run", "--out="], 1, "out must be a path, such as . for this folder, got ''"),
        (["run", "--out=~no-such-user/x"], 1, "out: ~no-such-user in ~no-such-user/x is not known here"),
        (["run", "--out=full"], 1, f"out: cannot write 'full' ({strerror(ENOSPC)})"),
        (["run", "--out=run/config.yaml"], 1, "out: cannot make the folder 'run/config.yaml' ("),
        (["run", "--out=run/config.yaml/out"], 1, "out: cannot make the folder 'run/config.yaml/out'"),
    ],
)
def test_wrong_arguments_are_refused(run, args, code, words, refused):
    (run / "mine").mkdir()
    (run / "mine/figures.md").write_text("# My figures\n")
    Path("full").mkdir()
    Path("full/final.csv").symlink_to("/dev/full")
    actual_code, line = refused("compare", *args)
    assert line.startswith(words)
    assert actual_code == code
