import shlex

import numpy as np
from reproduction.runs import Sweep
from reproduction.srpfl import hf_maml

from pfl_lightning.settings.values import class_name


def test_each_point_of_the_grid_differs_from_the_first_in_one_setting():
    first, *others = (dict(sweep.vary) for sweep in hf_maml.points().values())
    assert len(others) == sum(len(values) - 1 for values in hf_maml.GRID.values())
    assert [sum(first[key] != point[key] for key in first) for point in others] == [1] * len(others)


def test_the_best_point_on_validation_samples_of_the_first_seed_is_compared_on_test_samples(place, monkeypatch):
    place = place("", seeds=(10, 20))
    asked, best = [], list(hf_maml.points())[2]

    def scores(where, folder, sweep, split):
        asked.append((tuple(where.seeds), folder, split))
        best_here = sweep == hf_maml.points()[best]
        return {"global": np.array([30.0]), "adapted": np.array([np.nan if len(asked) == 1 else 40.0 + best_here])}

    monkeypatch.setattr(hf_maml, "scores", scores)
    hf_maml.compare_hf_maml(place)
    searched = len(hf_maml.points())
    assert asked[:searched] == [((10,), "hf-maml", "val")] * searched
    assert [split for *_, split in asked[searched:]] == ["test"] * (1 + len(hf_maml.OTHERS))
    text = (place.folder / "hf_maml.md").read_text()
    assert f"| HF-MAML, {best} " in text
    assert "| 30.00  | -       |" in text


def test_every_row_takes_its_options(plan, place, monkeypatch):
    found = []
    monkeypatch.setattr(hf_maml, "tried", lambda place, sweep: found.extend(plan(place, sweep).values()))
    for name, told in hf_maml.OTHERS.items():
        hf_maml.scores(place(""), hf_maml.folder(name), Sweep(("fedavg",), options=shlex.split(told)), "test")
    hf_maml.scores(place(""), "hf-maml", list(hf_maml.points().values())[-1], "val")
    kinds = [class_name(settings["model"]["class_path"]) for settings in found]
    assert kinds == ["AdaptedFedAvg"] * 3 + ["AliasedHFMAML", "HFMAML"]
    assert {settings["data"]["init_args"]["val_fraction"] for settings in found} == {0.2}
    authors = found[3]["model"]["init_args"]
    assert (authors["lr"], authors["inner_lr"], authors["epochs"]) == (0.1, 0.01, 5)
