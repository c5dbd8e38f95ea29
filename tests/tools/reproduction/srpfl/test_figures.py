import sys
from pathlib import Path

import pytest
from reproduction.srpfl import figures

from pfl_lightning.cli.sweep import sweep_command
from pfl_lightning.settings import class_name


@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_panel_names_files_that_exist(name, scale):
    figure = figures.FIGURES[name]
    for part in figure.small if scale == "small" else figure.panels:
        options = figures.fit_options(figure, part, scale, Path("files"))
        files = [option.removeprefix("--config=") for option in options if option.startswith("--config=")]
        assert len(files) == 2
        assert all(Path(file).is_file() for file in files)
        assert f"--data.root=files/{part.data}" in options


class Done:
    """A process that has ended well."""

    returncode = 0


def test_every_method_takes_the_options_of_its_panel(monkeypatch, tmp_path):
    commands, planned = [], []
    monkeypatch.setattr(sys, "argv", ["pfl"])
    monkeypatch.setattr(figures.subprocess, "run", lambda command: commands.append(command) or Done())
    figures.run_panel(figures.FIGURES["fig3"], figures.Panel("cifar10"), "small", Path("files"), tmp_path, [1], 1)
    monkeypatch.setattr("pfl_lightning.cli.sweep.Sweep.execute", lambda self, run: planned.append(run) or run.folder)
    for command in commands:
        sweep_command(command[command.index("sweep") + 1 :])
    settings = [run.settings["model"] for run in planned]
    assert len(planned) == len(figures.METHODS)
    assert all(model["init_args"].get("eval_epochs") in (3, None) for model in settings)
    assert {class_name(m["class_path"]) for m in settings if "eval_epochs" not in m["init_args"]} == {"HFMAML"}
