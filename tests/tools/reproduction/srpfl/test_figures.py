from pathlib import Path

import pytest
from fakes.panels import FAST, SLOW, panel
from reproduction.claims import Claim
from reproduction.runs import Experiment, start
from reproduction.srpfl import figures

from pfl_lightning.settings import class_name


@pytest.fixture
def place(tmp_path):
    return figures.Study("small", Path("files"), tmp_path, [10, 20, 30], 1)


@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_panel_names_files_that_exist(name, scale):
    figure = figures.FIGURES[name]
    assert figure.at(scale)
    for part in figure.at(scale):
        options = figures.fit_options(figure, part, scale, Path("files"))
        files = [option.removeprefix("--config=") for option in options if option.startswith("--config=")]
        assert len(files) == 2
        assert all(Path(file).is_file() for file in files)
        assert f"--data.root=files/{part.data}" in options


def test_every_method_takes_the_options_of_its_panel(planned, tmp_path):
    part = figures.Panel("cifar10")
    options = figures.fit_options(figures.FIGURES["fig3"], part, "small", Path("files"))
    for sweep in figures.sweeps_of(part, "small"):
        start(Experiment(tmp_path, options, [1]), sweep)
    settings = [run.settings["model"] for run in planned]
    assert len(planned) == len(figures.METHODS)
    assert all(model["init_args"].get("eval_epochs") in (3, None) for model in settings)
    assert {class_name(m["class_path"]) for m in settings if "eval_epochs" not in m["init_args"]} == {"HFMAML"}


@pytest.mark.parametrize("name", [name for name in figures.FIGURES if name != "fig3"])
def test_the_small_panels_of_every_figure_are_settings_of_pfl(name, planned, place):
    for part, experiment in figures.experiments(name, place):
        (sweep,) = [sweep for sweep in figures.sweeps_of(part, "small") if "fedrep-srpfl" in sweep.methods]
        assert start(experiment._replace(seeds=[10]), sweep._replace(methods=["fedrep-srpfl"])) == 0
    partitions = {class_name(run.settings["data"]["init_args"]["partition"]["class_path"]) for run in planned}
    natural = {"fig8_natural": {"NaturalUsers"}, "fig8_correlated": {"SpeedGroups"}}
    assert partitions == natural.get(name, {"ConsecutiveClasses"})


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", [name for name, figure in figures.FIGURES.items() if figure.beside])
def test_a_panel_is_compared_with_one_of_another_figure(name, scale, place):
    place = place._replace(scale=scale)
    for part in figures.FIGURES[name].at(scale):
        ((other, experiment),) = figures.compared(name, part, place)
        assert experiment.folder.parent == place.folder(figures.FIGURES[name].beside.figure)
        assert set(other.methods) == {"fedrep", "fedrep-srpfl"}
        assert (other.data == part.data) == (name != "fig8_natural" or scale == "small")


def test_claims_of_a_figure_name_their_panel_and_see_the_other_figure(monkeypatch, place):
    asked = []

    def trained(part, scale, experiment):
        asked.append(experiment.folder.relative_to(place.out).as_posix())
        return panel(FAST, SLOW)

    monkeypatch.setattr(figures, "panel_curves", trained)
    monkeypatch.setattr(figures, "announce", lambda *_: None)
    place.folder("fig4").mkdir()
    claims = figures.figure_claims("fig4", place)
    assert asked == ["srpfl-fig4-small/femnist", "srpfl-fig3-small/femnist"]
    assert all(claim.claim.startswith("femnist: ") for claim in claims)
    # the same curves in both figures: everything holds but the smaller gain
    assert [claim.claim.split(" (")[0] for claim in claims if not claim.passed] == [
        "femnist: The gain of FedRep-SRPFL is smaller than in Fig. 3"
    ]
    assert (place.folder("fig4") / "femnist.png").is_file()


def test_a_panel_may_have_claims_of_its_own(monkeypatch, place):
    own = figures.Panel("femnist", check=lambda curves: [Claim("own", "1", "1", True)])
    figure = figures.FIGURES["fig7"]._replace(small=(own,))
    monkeypatch.setitem(figures.FIGURES, "fig7", figure)
    monkeypatch.setattr(figures, "panel_curves", lambda *_: panel())
    monkeypatch.setattr(figures, "announce", lambda *_: None)
    place.folder("fig7").mkdir()
    assert [claim.claim for claim in figures.figure_claims("fig7", place)] == ["femnist: own"]
