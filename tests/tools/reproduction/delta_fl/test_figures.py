from pathlib import Path

import pytest
from reproduction.delta_fl import figures, search
from reproduction.delta_fl.runs import PAIRS, experiment, with_own_options
from reproduction.runs import Place, start

from pfl_lightning.settings import class_name


def place(folder, pair="femnist_linear", scale="small"):
    return Place(pair, scale, Path("files"), folder, [1], 1)


def train(place, sweep):
    start(experiment(place), with_own_options(place, sweep))


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_is_a_run_at_both_scales(pair, planned, tmp_path):
    for scale in ("small", "full"):
        train(place(tmp_path, pair, scale), figures.HALF)
    small, full = (run.settings for run in planned)
    for settings in (small, full):
        data = settings["data"]["init_args"]
        assert (data["test_clients"], data["eval_train"], data["val_fraction"]) == (0.5, True, 0.0)
        assert settings["percentile_errors"]["errors"] is True
    assert small["data"]["init_args"]["num_clients"] <= 100 < full["data"]["init_args"]["num_clients"]
    assert small["trainer"]["max_steps"] < full["trainer"]["max_steps"]


def test_the_runs_of_a_figure_are_found_where_the_sweep_puts_them(planned, tmp_path):
    for figure in ("fig17", "algorithm3"):
        planned.clear()
        for sweep in figures.FIGURES[figure].sweeps:
            train(place(tmp_path), sweep)
        names = [name for sweep in figures.FIGURES[figure].sweeps for name in sweep.names]
        assert [run.folder for run in planned] == [tmp_path / name / "seed_1" for name in names]


def test_fedavg_has_its_own_weight_decay(planned, tmp_path):
    for sweep in figures.FIGURES["table2"].sweeps:
        train(place(tmp_path), sweep)
    assert [run.folder.parent.name for run in planned] == [
        "fedavg",
        *(f"delta-fl,conformity={conformity}" for conformity in (0.8, 0.5, 0.1)),
    ]
    models = [run.settings["model"] for run in planned]
    assert [class_name(model["class_path"]) for model in models] == ["FedAvg", *["DeltaFL"] * 3]
    assert [model["init_args"]["weight_decay"] for model in models] == [1e-9, *[1e-7] * 3]
    assert [model["init_args"].get("conformity") for model in models] == [None, 0.8, 0.5, 0.1]


def test_learning_rates_are_evaluated_on_half_of_the_training_devices(planned, tmp_path):
    train(place(tmp_path), search.trials(search.learning_rates(place(tmp_path))))
    assert [run.settings["model"]["init_args"]["lr"] for run in planned] == [0.1, 0.3, 1.0, 3.0, 10.0]
    assert {run.settings["data"]["init_args"]["val_clients"] for run in planned} == {0.5}
