"""``pfl test RUN`` and ``pfl validate RUN``: the settings come along, and a table of all clients goes into it."""

import shutil
from errno import EISDIR
from os import strerror
from pathlib import Path

import pytest
from fakes.tables import read_table

from pfl_lightning.cli import main

OPTIONS = [
    *("--model=FedRep", "--model.network=MLP", "--model.network.hidden=[8]", "--model.eval_epochs=2"),
    *("--data.num_clients=4", "--trainer.val_check_interval=1", "--trainer.enable_progress_bar=false"),
]
RUN = Path("runs/FedRep-Digits/version_0")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of three rounds, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    main(["fit", *OPTIONS, "--trainer.max_steps=3", f"--trainer.default_root_dir={folder}"])
    return folder


@pytest.fixture(autouse=True)
def in_a_folder_with_the_run(finished, in_an_empty_folder):
    shutil.copytree(finished, "runs")


def rows(name: str, splits: tuple[str, ...], round_index: int) -> list[dict[str, str]]:
    return [row for row in read_table(RUN / name) if row["split"] in splits and row["round"] == str(round_index)]


def best_round() -> int:
    scores = {int(row["round"]): float(row["val/finetuned/accuracy/mean"]) for row in read_table(RUN / "metrics.csv")}
    return max(scores, key=lambda at: (scores[at], -at))


@pytest.mark.slow
def test_the_newest_checkpoint_gets_what_it_got_in_training(capsys):
    before = {path: path.stat().st_mtime_ns for path in RUN.rglob("*")}
    main(["test", str(RUN)])
    after = {path: path.stat().st_mtime_ns for path in RUN.rglob("*") if path.is_file()}
    assert after.keys() - before.keys() == {RUN / "test.csv"}
    assert all(after[path] == before[path] for path in after.keys() & before.keys())
    assert rows("test.csv", ("test", "val"), 3) == rows("clients.csv", ("test",), 3)
    assert len(rows("test.csv", ("test",), 3)) == 4 * 2  # clients x models
    out = capsys.readouterr().out
    assert "Clients' test accuracy (%) after round 3" in out
    assert f"Checkpoint:     {RUN}/checkpoints/last.ckpt" in out
    assert f"Each client:    {RUN}/test.csv" in out


def test_a_checkpoint_of_the_run_can_be_named(capsys):
    main(["validate", str(RUN / "checkpoints/best.ckpt")])
    assert rows("validate.csv", ("test", "val"), best_round()) == rows("clients.csv", ("val",), best_round())
    assert f"after round {best_round()}" in capsys.readouterr().out


def test_a_lone_checkpoint_is_evaluated_and_nothing_is_written(capsys):
    shutil.move(RUN / "checkpoints/last.ckpt", "mine.ckpt")
    shutil.rmtree("runs")
    main(["test", "mine.ckpt"])
    assert [path.name for path in Path().iterdir()] == ["mine.ckpt"]
    assert "after round 3" in capsys.readouterr().out


def test_new_clients_have_a_table_of_their_own(capsys):
    main(["test", str(RUN), "--data.new_clients=6"])
    assert {row["client"] for row in rows("new_clients.csv", ("test",), 3)} == set("012345")
    assert capsys.readouterr().err == "pfl: note: data.new_clients: 0 in the checkpoint, 6 from now on\n"
    assert not (RUN / "test.csv").exists()


@pytest.mark.slow
def test_the_usual_way_to_name_a_checkpoint_writes_the_same_table():
    main(["test", str(RUN)])
    written = (RUN / "test.csv").read_bytes()
    (RUN / "test.csv").unlink()
    main(["test", *OPTIONS, "--ckpt_path=last"])
    assert (RUN / "test.csv").read_bytes() == written
    main(["validate", *OPTIONS, "--ckpt_path=last"])
    assert (RUN / "validate.csv").is_file()


@pytest.mark.slow
def test_training_continues_from_a_run_folder(capsys):
    main(["fit", *OPTIONS, "--trainer.max_steps=4", f"--ckpt_path={RUN}"])
    assert rows("clients.csv", ("test",), 4)
    assert not (RUN.parent / "version_1").exists()


@pytest.mark.filterwarnings("default:.*cannot be written")
def test_a_table_that_cannot_be_written_gets_a_word(capsys):
    (RUN / "test.csv").mkdir()
    main(["test", str(RUN)])
    screen = capsys.readouterr()
    assert "after round 3" in screen.out
    assert screen.err == f"pfl: warning: '{RUN}/test.csv' cannot be written ({strerror(EISDIR)})\n"
