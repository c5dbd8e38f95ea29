"""What cannot be evaluated, exported or read gets one line, and nothing is written."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from pfl_lightning.cli import main

TINY = [
    *("--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=4", "--data.val_fraction=0"),
    *("--trainer.max_steps=1", "--trainer.enable_progress_bar=false"),
]
RUN = "runs/FedAvg-Digits/version_0"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of one round, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    main(["fit", *TINY, f"--trainer.default_root_dir={folder}"])
    return folder


@pytest.fixture(autouse=True)
def in_a_folder_with_the_run(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pfl"])
    shutil.copytree(finished, "runs")
    Path("empty").mkdir()
    Path("file.ckpt").write_text("no checkpoint")


def changed(**settings: object) -> None:
    """Change entries of the settings in the run's checkpoint."""
    path = Path(RUN, "checkpoints/last.ckpt")
    content = torch.load(path, weights_only=True)
    content["config"] |= settings
    torch.save(content, path)


def content() -> dict[str, bytes | None]:
    """Every file and folder here."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


def refusal(capsys, *words: str) -> str:
    """The only line that a command says, which changes nothing."""
    before = content()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert content() == before
    return line.removeprefix("pfl: error: ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["test"], "pfl test: a run is missing; allowed: its folder, or a checkpoint of it"),
        (["test", "nowhere"], "ckpt_path: no such file: 'nowhere'; allowed: a run folder, a checkpoint, or last"),
        (["test", "empty"], "ckpt_path: 'empty' has no readable checkpoint; allowed: a run folder, a checkpoint"),
        (["test", "file.ckpt"], "ckpt_path: 'file.ckpt' is damaged or not complete; allowed: a checkpoint of pfl fit"),
        (["test", RUN, "--ckpt_path=last"], f"ckpt_path: not possible beside '{RUN}'; allowed: one of them"),
        (["validate", RUN], "data.val_fraction: 0 leaves nothing to validate on; allowed: more than 0, or pfl test"),
        (["test", RUN, "other"], "other: no such option"),
        (["test", RUN, "--data.new_client=3"], "data.new_client: Digits has no such option; did you mean new_clients?"),
        (["test", RUN, "--data.num_clients=x"], "data.num_clients: 'x' is not possible; allowed: "),
        (
            ["test", RUN, "--model.epochs=2", "--data.num_clients=3", "--model.lr=0.3", "--seed_everything=2"],
            "data.num_clients: 4 in the checkpoint, 3 now; model.epochs: 1 in the checkpoint, 2 now; seed_everything: "
            "1 in the checkpoint, 2 now; keep the old values, or start a new run",
        ),
        (["test", RUN, "--model=FedRep"], "model: pfl_lightning.methods.FedAvg in the checkpoint, pfl_lightning.m"),
    ],
)
def test_what_cannot_be_evaluated(words, line, capsys):
    assert refusal(capsys, *words).startswith(line)


def test_an_error_in_the_settings_of_a_run_names_it(capsys):
    changed(model={"class_path": "elsewhere.Mine", "init_args": {}})
    line = refusal(capsys, "test", RUN)
    assert line.startswith("model: Mine: No module named 'elsewhere'")
    assert RUN in line
