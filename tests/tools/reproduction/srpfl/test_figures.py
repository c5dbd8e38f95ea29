from pathlib import Path

import pytest
from reproduction.runs import Experiment, start
from reproduction.srpfl import figures

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


def test_every_method_takes_the_options_of_its_panel(planned, tmp_path):
    panel = figures.Panel("cifar10")
    options = figures.fit_options(figures.FIGURES["fig3"], panel, "small", Path("files"))
    for sweep in figures.sweeps_of(panel, "small"):
        start(Experiment(tmp_path, options, [1]), sweep)
    settings = [run.settings["model"] for run in planned]
    assert len(planned) == len(figures.METHODS)
    assert all(model["init_args"].get("eval_epochs") in (3, None) for model in settings)
    assert {class_name(m["class_path"]) for m in settings if "eval_epochs" not in m["init_args"]} == {"HFMAML"}
