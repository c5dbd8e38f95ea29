import csv
import re
import shutil
from pathlib import Path

import pytest

from pfl_lightning.cli import main

COSTS = ("time", "rounds", "bits", "samples")
TABLES = ("final", "errors", "convergence", *(f"{cost}_to_accuracy" for cost in COSTS))
FIGURES = (*(f"accuracy_{cost}" for cost in COSTS), "errors_rounds", "tail", "clients", "samples")
SVG = ["--format", "svg"]  # drawn fastest
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


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_compare_writes_figures_and_tables_and_prints_a_screen_of_these(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["compare", *runs, "--targets", "0.0", "0.99", "--communication_times", "0", "7"])
    out = Path("comparison")
    assert {path.name for path in out.iterdir()} == {
        *(f"{name}.png" for name in FIGURES),
        *(f"{name}.{kind}" for name in TABLES for kind in ("csv", "md")),
        "figures.md",
    }
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.startswith("\n".join((out / f"{name}.md").read_text() for name in ("final", "time_to_accuracy")))
    more = [name for name in TABLES if name not in ("final", "time_to_accuracy")]
    assert set(re.findall(r"\w+_to_accuracy|errors|convergence", told.out.splitlines()[-1])) == set(more)
    assert len(told.out.splitlines()) < 25
    # the clients' final mean is what the run logged
    final = {row["method"]: row for row in rows(out / "final.csv")}
    assert {name: row["seeds"] for name, row in final.items()} == {"FedAvg": "1", "FedAvg-FT": "1", "FedRep-SRPFL": "2"}
    logged = [float(rows(f"{run}/metrics.csv")[-1]["test/finetuned/accuracy/mean"]) for run in runs]
    assert float(final["FedAvg-FT"]["mean"]) == pytest.approx(logged[0])
    assert float(final["FedRep-SRPFL"]["mean"]) == pytest.approx((logged[1] + logged[2]) / 2)
    times = [(row["target"], row["communication_time"]) for row in rows(out / "time_to_accuracy.csv")]
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
    metrics = rows(short / "metrics.csv")
    with (short / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, metrics[0])
        writer.writeheader()
        writer.writerows({**row, "train/loss": ""} for row in metrics)
    main(["compare", str(short), *SVG, "--out", str(tmp_path)])
    assert not list(tmp_path.glob("*.pdf"))
    assert not list(tmp_path.glob("convergence.*"))
    assert [(tmp_path / name).read_text() for name in ("notes.md", "setup.png")] == ["mine"] * 2


@pytest.mark.slow
def test_costs_do_not_depend_on_how_often_rounds_are_logged(tmp_path):
    for every in ("1", "3"):
        where = [f"--trainer.default_root_dir={tmp_path}/{every}", f"--trainer.log_every_n_steps={every}"]
        main(["fit", "--model=FedAvg", *SMALL, "--trainer.max_steps=5", "--trainer.val_check_interval=2", *where])
        main(["compare", f"{tmp_path}/{every}/FedAvg-Digits/version_0", *SVG, "--out", f"{tmp_path}/out{every}"])
    for name in ("bits", "samples"):
        one, other = (rows(f"{tmp_path}/out{every}/{name}_to_accuracy.csv") for every in ("1", "3"))
        assert one == other


@pytest.mark.slow
def test_figures_keep_their_text_in_svg_and_carry_no_date(runs, tmp_path):
    for name in ("one", "two"):
        main(["compare", *runs, *SVG, "--out", str(tmp_path / name)])
    assert {path.stem for path in (tmp_path / "one").glob("*.svg")} == set(FIGURES)
    assert not list((tmp_path / "one").glob("*.p*"))
    assert ">FedRep-SRPFL</text>" in (tmp_path / "one/accuracy_time.svg").read_text()
    for path in (tmp_path / "one").glob("*.svg"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    captions = (tmp_path / "one/figures.md").read_text()
    assert "![accuracy_time](accuracy_time.svg)" in captions
    assert "Lines are means over 1 to 2 seeds" in captions


@pytest.mark.slow
def test_models_can_be_chosen_and_a_table_of_dashes_is_not_printed(runs, tmp_path, capsys):
    main(["compare", *runs, "--models", "stored", "global", "--targets", "1", *SVG, "--out", str(tmp_path)])
    told = capsys.readouterr().out
    assert (tmp_path / "final.md").read_text() in told
    assert (tmp_path / "time_to_accuracy.md").read_text() not in told
    assert [row["method"] for row in rows(tmp_path / "final.csv")] == ["FedAvg", "FedRep-SRPFL (stored)"]


def with_choice(run, folder):
    """A copy of a run that was also evaluated on samples for choosing, and in which some clients sat out."""
    shutil.copytree(run, folder)
    text = (folder / "clients.csv").read_text()
    chosen = [line.replace(",test,", ",choice,") for line in text.splitlines(keepends=True) if ",test," in line]
    (folder / "clients.csv").write_text(text + "".join(chosen))
    metrics = rows(folder / "metrics.csv")
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, metrics[0])
        writer.writeheader()
        writer.writerows({**row, "system/cohort": row["round"]} for row in metrics)
    return str(folder)


@pytest.mark.slow
def test_what_the_runs_allow_is_added(runs, tmp_path, capsys):
    fedavg, first, second = (with_choice(run, tmp_path / str(index)) for index, run in enumerate(runs))
    main(["compare", fedavg, first, *SVG, "--out", str(tmp_path / "out")])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"choice.md", "choice.csv", "choice_groups.csv", "choice.svg", "cohort.svg"}
    told = capsys.readouterr()
    assert "choice" in told.out.splitlines()[-1]
    assert told.err == ""
    main(["compare", fedavg, second, *SVG, "--out", str(tmp_path / "unpaired")])
    assert capsys.readouterr().err == "pfl: note: no table of what clients choose: no seed is in all curves\n"
    assert not (tmp_path / "unpaired/choice.md").exists()


@pytest.mark.slow
def test_a_run_that_has_not_ended_and_counts_no_bits_is_compared_without_them_and_with_a_note(runs, tmp_path, capsys):
    shutil.copytree(runs[0], old := tmp_path / "old")
    metrics, config = old / "metrics.csv", old / "config.yaml"
    metrics.write_text(metrics.read_text().replace("bits/", "other/").replace("samples/", "more/"))
    config.write_text(config.read_text().replace("max_steps: 3", "max_steps: 9"))
    main(["compare", str(old), *SVG, "--out", str(tmp_path / "out")])
    assert capsys.readouterr().err == f"pfl: note: '{old}' stops after round 3 of 9\n"
    assert (tmp_path / "out/accuracy_time.svg").is_file()
    assert not [path for path in (tmp_path / "out").iterdir() if "bits" in path.name or "accuracy_s" in path.name]


@pytest.mark.slow
def test_all_files_are_there_before_the_first_line_is_printed(runs, tmp_path, monkeypatch):
    def closed(text):
        raise BrokenPipeError

    monkeypatch.setattr("pfl_lightning.cli.compare.show", closed)  # `pfl compare ... | head -1`
    with pytest.raises((BrokenPipeError, SystemExit)):
        main(["compare", runs[0], *SVG, "--out", str(tmp_path)])
    assert {"final.csv", "errors.md", "tail.svg", "figures.md"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_runs_without_the_loss_of_every_round_are_compared_without_their_convergence(runs, tmp_path):
    shutil.copytree(runs[0], seldom := tmp_path / "seldom")
    metrics, clients = seldom / "metrics.csv", seldom / "clients.csv"
    with metrics.open("a", newline="") as file:
        last = rows(metrics)[-1]
        csv.DictWriter(file, last).writerow({**last, "round": "4", "train/loss": ""})
    text = clients.read_text()
    clients.write_text(text + "".join(f"4{line[1:]}" for line in text.splitlines(True) if line.startswith("3,")))
    main(["compare", str(seldom), *SVG, "--out", str(tmp_path / "out")])
    assert (tmp_path / "out/time_to_accuracy.csv").is_file()
    assert not (tmp_path / "out/convergence.csv").exists()


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (["nowhere"], 1, "runs: no such folder: 'nowhere'"),
        (["{run}", "{run}"], 1, "seed_everything: 1 in "),
        (["{run}", "--targets", "60"], 1, "targets must be accuracies between 0 and 1, got 60"),
        (["{run}", "--models", "globl"], 1, "models: "),
        (["{run}", "--target", "0.6"], 2, "--target: no such option; did you mean --targets?"),
        ([], 2, "runs: a value is missing"),
    ],
)
def test_what_is_not_possible_is_refused_in_one_line(runs, args, code, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["compare", *(arg.format(run=runs[0]) for arg in args)])
    assert stop.value.code == code
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"pfl: error: {line}")
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"
