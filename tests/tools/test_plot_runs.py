import importlib.util
import sys
from pathlib import Path

import pytest

from pfl_lightning.cli import main

TOOL = Path(__file__).parents[2] / "tools" / "plot_runs.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("plot_runs", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_runs_become_a_picture_with_their_names_and_final_values(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pfl"])
    short = ["--trainer.max_steps=2", "--trainer.enable_progress_bar=false", "--model.network.hidden=[4]"]
    main(["fit", "--model=FedRep", *short, "--trainer.callbacks+=StageDoubling"])
    main(["fit", "--model=FedAvg", *short])
    runs = [Path("runs/FedRep-Digits/version_0"), Path("runs/FedAvg-Digits/version_0")]
    assert [tool.label(run) for run in runs] == ["FedRep-SRPFL", "FedAvg"]
    rows = tool.read(runs[0])
    assert [row["round"] for row in rows] == [0, 2]
    assert rows[1]["time/total"] > 0
    tool.main(runs, Path("docs/figure.png"))
    assert Path("docs/figure.png").read_bytes().startswith(b"\x89PNG")
