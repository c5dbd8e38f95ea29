import csv
import re
import shutil
from pathlib import Path

import pytest
from fakes.tables import read_table

from pfl_lightning.cli import main

COSTS = ("time", "rounds", "bits", "samples")
TABLES = ("final", "errors", "convergence", *(f"{cost}_to_accuracy" for cost in COSTS))
FIGURES = (*(f"accuracy_{cost}" for cost in COSTS), "errors_rounds", "tail", "clients", "samples")
SMALL = ["--model.network=MLP", "--model.network.hidden=[4]", "--trainer.enable_progress_bar=false"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """FedRep-SRPFL with two seeds, and FedAvg, of three rounds each."""
    folder = tmp_path_factory.mktemp("runs")
    short = [*SMALL, "--trainer.max_steps=3", "--trainer.val_check_interval=2", f"--trainer.default_root_dir={folder}"]
    for seed in ("1", "2"):
        main(["fit", "--model=FedRep", *short, "--seed_everything", seed, "--trainer.callbacks+=StageDoubling"])
    main(["fit", "--model=FedAvg", *short])
    return [str(path) for path in sorted(folder.glob("*/version_*"))]


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def compare(out, *words):
    """Compares runs with figures that are drawn fastest, and returns the files."""
    main(["compare", *words, "--format=svg", f"--out={out}"])
    return {path.name for path in out.iterdir()}


@pytest.mark.slow
def test_compare_writes_figures_and_tables_and_prints_a_screen_of_these(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["compare", *runs, "--targets", "0.0", "0.99", "--communication_times", "0", "7"])
    out = Path("comparison")
    assert {path.name for path in out.iterdir()} == {
        *(f"{name}.png" for name in FIGURES),
        *(f"{name}.{kind}" for name in TABLES for kind in ("csv", "md")),
        "figures.md",
        "final.tex",
    }
    screen = capsys.readouterr()
    assert screen.err == ""
    assert screen.out.startswith("\n".join((out / f"{name}.md").read_text() for name in ("final", "time_to_accuracy")))
    more = [name for name in TABLES if name not in ("final", "time_to_accuracy")]
    assert set(re.findall(r"\w+_to_accuracy|errors|convergence", screen.out.splitlines()[-1])) == set(more)
    assert len(screen.out.splitlines()) < 25
    # the clients' final mean is what the run logged
    final = {row["method"]: row for row in read_table(out / "final.csv")}
    assert {name: row["seeds"] for name, row in final.items()} == {"FedAvg": "1", "FedAvg-FT": "1", "FedRep-SRPFL": "2"}
    logged = [float(read_table(f"{run}/metrics.csv")[-1]["test/finetuned/accuracy/mean"]) for run in runs]
    assert float(final["FedAvg-FT"]["mean"]) == pytest.approx(logged[0])
    assert float(final["FedRep-SRPFL"]["mean"]) == pytest.approx((logged[1] + logged[2]) / 2)
    times = [(row["target"], row["communication_time"]) for row in read_table(out / "time_to_accuracy.csv")]
    assert times == [(target, time) for target in ("0.0", "0.99") for _ in range(3) for time in ("0.0", "7.0")]


@pytest.mark.slow
def test_nothing_is_left_of_an_earlier_comparison_but_a_users_own_files(runs, tmp_path):
    main(["compare", *runs, "--format", "svg", "pdf", "--out", str(tmp_path)])
    for name in ("notes.md", "setup.png"):
        (tmp_path / name).write_text("mine")
    with (tmp_path / "figures.md").open("a") as captions:
        captions.write("## setup\n")
    short = tmp_path / "short"
    shutil.copytree(runs[0], short)
    metrics = read_table(short / "metrics.csv")
    write_rows(short / "metrics.csv", [{**row, "train/loss": ""} for row in metrics])
    names = compare(tmp_path, str(short))
    assert not [name for name in names if name.startswith("convergence.") or name.endswith(".pdf")]
    assert [(tmp_path / name).read_text() for name in ("notes.md", "setup.png")] == ["mine"] * 2


@pytest.mark.slow
def test_costs_do_not_depend_on_how_often_rounds_are_logged(tmp_path):
    for every in ("1", "3"):
        where = [f"--trainer.default_root_dir={tmp_path}/{every}", f"--trainer.log_every_n_steps={every}"]
        main(["fit", "--model=FedAvg", *SMALL, "--trainer.max_steps=5", "--trainer.val_check_interval=2", *where])
        compare(tmp_path / f"out{every}", f"{tmp_path}/{every}/FedAvg-Digits/version_0")
    for name in ("bits", "samples"):
        often, seldom = (read_table(f"{tmp_path}/out{every}/{name}_to_accuracy.csv") for every in ("1", "3"))
        assert often == seldom


@pytest.mark.slow
def test_figures_keep_their_text_in_svg_and_carry_no_date(runs, tmp_path):
    names, again = (compare(tmp_path / name, *runs) for name in ("one", "two"))
    assert names == again
    assert {name for name in names if not name.endswith((".csv", ".md", ".tex"))} == {f"{name}.svg" for name in FIGURES}
    assert ">FedRep-SRPFL</text>" in (tmp_path / "one/accuracy_time.svg").read_text()
    for path in (tmp_path / "one").glob("*.svg"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    captions = (tmp_path / "one/figures.md").read_text()
    assert "![accuracy_time](accuracy_time.svg)" in captions
    assert "Lines are means over 1 to 2 seeds" in captions


@pytest.mark.slow
def test_models_can_be_chosen_and_a_table_of_dashes_is_not_printed(runs, tmp_path, capsys):
    compare(tmp_path, *runs, "--models", "stored", "global", "--targets", "1")
    out = capsys.readouterr().out
    assert (tmp_path / "final.md").read_text() in out
    assert (tmp_path / "time_to_accuracy.md").read_text() not in out
    assert [row["method"] for row in read_table(tmp_path / "final.csv")] == ["FedAvg", "FedRep-SRPFL (stored)"]


def with_choice(run, folder):
    """A copy of a run that was also evaluated on samples for choosing, and in which some clients sat out."""
    shutil.copytree(run, folder)
    text = (folder / "clients.csv").read_text()
    chosen = [line.replace(",test,", ",choice,") for line in text.splitlines(keepends=True) if ",test," in line]
    (folder / "clients.csv").write_text(text + "".join(chosen))
    metrics = read_table(folder / "metrics.csv")
    write_rows(folder / "metrics.csv", [{**row, "system/cohort": row["round"]} for row in metrics])
    return str(folder)


@pytest.mark.slow
def test_what_the_runs_allow_is_added(runs, tmp_path, capsys):
    fedavg, first, second = (with_choice(run, tmp_path / str(index)) for index, run in enumerate(runs))
    names = compare(tmp_path / "out", fedavg, first)
    assert names >= {"choice.md", "choice.csv", "choice_groups.csv", "choice.svg", "cohort.svg"}
    screen = capsys.readouterr()
    assert "choice" in screen.out.splitlines()[-1]
    assert screen.err == ""
    assert "choice.md" not in compare(tmp_path / "unpaired", fedavg, second)
    assert capsys.readouterr().err == "pfl: note: no table of what clients choose: no seed is in all curves\n"


@pytest.mark.slow
def test_a_run_that_has_not_ended_and_counts_no_bits_is_compared_without_them_and_with_a_note(runs, tmp_path, capsys):
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    metrics = run / "metrics.csv"
    config = run / "config.yaml"
    metrics.write_text(metrics.read_text().replace("bits/", "other/").replace("samples/", "more/"))
    config.write_text(config.read_text().replace("max_steps: 3", "max_steps: 9"))
    names = compare(tmp_path / "out", str(run))
    assert capsys.readouterr().err == f"pfl: note: '{run}' stops after round 3 of 9\n"
    assert "accuracy_time.svg" in names
    assert not [name for name in names if "bits" in name or "accuracy_s" in name]


@pytest.mark.slow
def test_all_files_are_there_before_the_first_line_is_printed(runs, tmp_path, monkeypatch):
    def closed(text):
        raise BrokenPipeError

    monkeypatch.setattr("pfl_lightning.cli.compare.show", closed)  # `pfl compare ... | head -1`
    with pytest.raises((BrokenPipeError, SystemExit)):
        compare(tmp_path, runs[0])
    assert {"final.csv", "errors.md", "tail.svg", "figures.md"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_runs_without_the_loss_of_every_round_are_compared_without_their_convergence(runs, tmp_path):
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    metrics = run / "metrics.csv"
    clients = run / "clients.csv"
    rounds = read_table(metrics)
    write_rows(metrics, [*rounds, {**rounds[-1], "round": "4", "train/loss": ""}])
    text = clients.read_text()
    clients.write_text(text + "".join(f"4{line[1:]}" for line in text.splitlines(True) if line.startswith("3,")))
    names = compare(tmp_path / "out", str(run))
    assert "time_to_accuracy.csv" in names
    assert "convergence.csv" not in names
