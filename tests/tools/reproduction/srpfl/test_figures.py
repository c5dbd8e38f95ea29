from pathlib import Path

import pytest
from fakes.panels import FAST, SLOW, failed, panel
from reproduction.claims import HOLDS, fact
from reproduction.srpfl import figures

from pfl_lightning.settings.values import class_name


@pytest.fixture
def srpfl(place, tmp_path):
    """Makes the place of a figure at a scale."""
    return lambda name, scale="small": place("", scale=scale)._replace(folder=tmp_path / f"srpfl-{name}-{scale}")


@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_panel_names_files_that_exist(name, scale, srpfl):
    parts = figures.FIGURES[name].at(scale)
    assert parts
    for part in parts:
        options = figures.panel_place(name, part, srpfl(name, scale)).options
        files = [option.removeprefix("--config=") for option in options if option.startswith("--config=")]
        assert [Path(file).is_file() for file in files] == [True, True]
        assert f"--data.root=files/{part.data}" in options


def test_every_method_takes_the_options_of_its_panel(plan, srpfl):
    part = figures.Panel("cifar10")
    found = plan(figures.panel_place("fig3", part, srpfl("fig3")), *figures.sweeps_of(part, "small"))
    assert found.keys() == set(figures.METHODS)
    epochs = {name: settings["model"]["init_args"].get("eval_epochs") for name, settings in found.items()}
    assert epochs == {**dict.fromkeys(figures.METHODS, 3), "hf-maml": None}


@pytest.mark.parametrize("name", [name for name in figures.FIGURES if name != "fig3"])
def test_the_small_panels_of_every_figure_are_settings_of_pfl(name, plan, srpfl):
    partitions = set()
    for part in figures.FIGURES[name].at("small"):
        (sweep,) = [sweep for sweep in figures.sweeps_of(part, "small") if "fedrep-srpfl" in sweep.methods]
        here = figures.panel_place(name, part, srpfl(name))
        (settings,) = plan(here, sweep._replace(methods=["fedrep-srpfl"])).values()
        partitions.add(class_name(settings["data"]["init_args"]["partition"]["class_path"]))
    natural = {"fig8_natural": {"NaturalUsers"}, "fig8_correlated": {"SpeedGroups"}}
    assert partitions == natural.get(name, {"ConsecutiveClasses"})


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("fig3", None),
        ("fig4", 20),
        ("fig5", None),
        ("fig6", 20),
        ("fig8_imbalanced", None),
        ("fig8_natural", None),
        ("fig8_correlated", None),
    ],
)
def test_two_cores_have_the_papers_clients_rounds_and_stages(name, pool, plan, srpfl):
    for part in figures.FIGURES[name].at("two_cores"):
        here = figures.panel_place(name, part, srpfl(name, "two_cores"))
        # a figure with sampled clients has other local epochs than the one beside it
        assert (figures.compared(name, part, here) is None) == (pool == 20 or figures.FIGURES[name].beside is None)
        settings = plan(here, *figures.sweeps_of(part, "two_cores"))["fedrep-srpfl"]
        data, trainer = settings["data"]["init_args"], settings["trainer"]
        participation = data["participation"]
        assert (data["num_clients"], participation and participation["init_args"]["pool_size"]) == (100, pool)
        (stages,) = [each["init_args"] for each in trainer["callbacks"] if "Doubling" in each["class_path"]]
        assert (trainer["max_steps"], stages["n0"], stages["rounds_per_stage"]) == (150, 10, 10)


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, scale) for name, each in figures.FIGURES.items() if each.beside for scale in each.beside.scales],
)
def test_a_panel_is_compared_with_one_of_another_figure(name, scale, srpfl):
    assert figures.FIGURES[name].at(scale)
    for part in figures.FIGURES[name].at(scale):
        other = figures.compared(name, part, srpfl(name, scale))
        assert set(other.methods) == {"fedrep", "fedrep-srpfl"}
        assert (other.data == part.data) == (name != "fig8_natural" or scale != "full")


def test_claims_of_a_figure_name_their_panel_and_see_the_other_figure(monkeypatch, srpfl):
    asked, here = [], srpfl("fig4")
    monkeypatch.setattr(figures, "panel_curves", lambda part, there: asked.append(there.folder) or panel(FAST, SLOW))
    here.folder.mkdir()
    claims = figures.figure_claims("fig4", here)
    assert asked == [here.folder / "femnist", srpfl("fig3").folder / "femnist"]
    assert all(claim.claim.startswith("femnist: ") for claim in claims)
    # the same curves in both figures: everything holds but the smaller gain
    (claim,) = [claim for claim in claims if claim.verdict != HOLDS]
    assert claim.claim.startswith("femnist: The gain of FedRep-SRPFL is smaller than in Fig. 3")
    assert (here.folder / "femnist.png").is_file()


def test_a_panel_may_have_claims_of_its_own(monkeypatch, srpfl):
    own = figures.Panel("femnist", check=lambda curves: [fact("own", "1", "1", False)])
    monkeypatch.setitem(figures.FIGURES, "fig7", figures.FIGURES["fig7"]._replace(small=(own,)))
    monkeypatch.setattr(figures, "panel_curves", lambda *_: panel())
    srpfl("fig7").folder.mkdir()
    assert failed(figures.figure_claims("fig7", srpfl("fig7"))) == ["femnist"]
