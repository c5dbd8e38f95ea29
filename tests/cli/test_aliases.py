import pytest

from pfl_lightning.cli import main, sweep
from pfl_lightning.runs.run_settings import settings_of, without_aliases

WORDS = ["--method", "FedRep", "--rounds=7", "--clients", "8", "--lr", "0.3", "--seed=5", "--epochs", "2"]


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_short_names_set_the_options_that_they_stand_for():
    settings = settings_of([*WORDS, "--dataset", "Digits", "--batch_size", "4"])
    assert settings["model"]["class_path"] == "pfl_lightning.methods.FedRep"
    local, data = settings["model"]["init_args"]["local"], settings["data"]["init_args"]
    assert (local["lr"], local["epochs"], local["batch_size"]) == (0.3, 2, 4)
    assert (settings["trainer"]["max_steps"], data["num_clients"]) == (7, 8)
    assert settings["seed_everything"] == 5


def test_values_and_true_options_stay_what_they_are():
    words = ["fit", "--help", "--model", "--config=x", "lr", "--model.local.lr", "--", "--model.pretrained=--lr"]
    assert list(without_aliases(words)) == words


def test_a_sweep_takes_short_names_for_what_varies_and_what_it_passes_on(monkeypatch):
    planned = []
    monkeypatch.setattr(sweep.Sweep, "execute_all", lambda self, runs: planned.extend(runs) or [None])
    with pytest.raises(SystemExit):
        main(["sweep", "--seeds=1", "--methods=methods/fedrep", "--vary=lr=0.1,0.3", "--", "--rounds", "3"])
    assert [run.settings["model"]["init_args"]["local"]["lr"] for run in planned] == [0.1, 0.3]
    assert {run.settings["trainer"]["max_steps"] for run in planned} == {3}
    assert [run.folder.parent.name for run in planned] == ["fedrep,lr=0.1", "fedrep,lr=0.3"]


def test_the_seed_of_a_sweep_is_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--seeds=1", "--methods=methods/fedrep", "--", "--seed", "3"])
    assert "--seed_everything is not possible, the sweep sets it" in capsys.readouterr().err
