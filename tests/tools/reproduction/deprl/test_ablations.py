from types import SimpleNamespace

import numpy as np
import pytest
from fakes.panels import failed
from reproduction.deprl import ablations
from reproduction.deprl.runs import GOSSIP


@pytest.fixture
def train(monkeypatch):
    """Replaces training by made-up accuracies, of a method and a value of the setting."""

    def replace(score, usual):
        def curves(place, sweeps):
            return {name: SimpleNamespace(name=name) for sweep in sweeps for name in sweep.names}

        def final(curve):
            method, _, _, *varied = curve.name.split(",")
            return score(method, int(varied[0].partition("=")[2]) if varied else usual) + np.array([-1.0, 1.0])

        monkeypatch.setattr(ablations, "curves", curves)
        monkeypatch.setattr(ablations, "final", final)

    return replace


def test_epochs_that_help_and_a_deprl_that_is_best_pass_and_are_shown(train, place):
    place = place("cifar10", seeds=(1, 2))
    train(lambda method, epochs: 60 + epochs + 10 * GOSSIP.index(method), usual=2)
    claims = ablations.fig8_claims(place)
    assert (len(claims), failed(claims)) == (6, [])
    rows = [line.replace("|", " ").split() for line in (place.folder / "fig8.md").read_text().splitlines()]
    assert ["2", "62.00", "±", "1.41", "72.00", "±", "1.41", "82.00", "±", "1.41"] in rows
    assert (place.folder / "fig8.png").is_file()


def test_a_rival_and_harmful_epochs_fail(train, place):
    place = place("cifar10")
    train(lambda m, epochs: 60 + epochs / 100 if m == "deprl" else 50 if m == "dispfl" else 48.1 + 4 * epochs, usual=2)
    assert failed(ablations.fig8_claims(place)) == ["3 epochs", "4 epochs", "5 epochs"]
    train(lambda method, epochs: 90 - epochs if method == "deprl" else 10, usual=2)
    assert failed(ablations.fig8_claims(place)) == ["DePRL"]


def test_every_number_of_clients_has_a_claim(train, place):
    train(lambda method, clients: clients if method == "deprl" else 20, usual=16)
    assert failed(ablations.fig9_claims(place("cifar10"))) == ["8 clients", "16 clients"]


def test_new_clients_are_tested_with_every_number_of_samples(train, place, monkeypatch):
    def new_accuracy(curve, clients, samples):
        return np.array([40, 60]) + (samples - clients if curve.name.startswith("deprl") else 0)

    train(None, usual=2)
    monkeypatch.setattr(ablations, "new_accuracy", new_accuracy)
    place = place("cifar10", seeds=(1, 2))
    claims = ablations.new_samples_claims(place)
    assert failed(claims) == ["5 samples of a new client", "10 samples of a new client"]
    assert len(claims) == 4
    (header,) = (line for line in (place.folder / "new_samples.md").read_text().splitlines() if "D-PSGD" in line)
    assert [name.strip() for name in header.split("|")[2:-1]] == [
        *("D-PSGD", "DisPFL", "DePRL", "FedAvg", "FedRep", "Ditto", "FedRoD")
    ]
    assert (place.folder / "new_samples.png").is_file()
