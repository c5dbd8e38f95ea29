from typing import get_args

import pytest
import reproduce
from reproduction.claims import Claim
from reproduction.deprl.items import ITEMS, ItemName

from pfl_lightning.errors import PflError


def test_every_item_has_an_entry():
    assert set(ITEMS) == set(get_args(ItemName))


@pytest.mark.parametrize(
    ("item", "data", "line"),
    [
        ("table1", "harbox", "allowed: fashion_mnist, cifar10"),
        ("table9", "cifar10", "allowed: fashion_mnist"),
    ],
)
def test_data_that_are_too_large_for_a_small_run_get_one_line(item, data, line, capsys):
    with pytest.raises(SystemExit) as stop:
        reproduce.deprl(item, data=[data])
    assert stop.value.code == 2
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown == f"pfl: error: data: {data} is not possible for {item} at small scale; {line}"


def test_tables_and_figures_of_a_data_set_share_their_runs(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(reproduce, "deprl_item_claims", lambda item, place: asked.append(place) or [])
    for item in ("table1", "fig10", "table7"):
        reproduce.deprl(item, out=tmp_path, data=["cifar10"])
    assert asked[0] == asked[1] == asked[2]
    assert asked[0].folder == tmp_path / "deprl-cifar10-small"
    assert asked[0].seeds == [1, 2, 3]


def test_missing_files_are_said_in_one_line(tmp_path, capsys, monkeypatch):
    def fail(item, place):
        raise PflError("data.root: no Fashion-MNIST")

    monkeypatch.setattr(reproduce, "deprl_item_claims", fail)
    with pytest.raises(SystemExit) as stop:
        reproduce.deprl("fig3", out=tmp_path)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "pfl: error: data.root: no Fashion-MNIST\n"


def test_claims_say_which_data_they_are_about(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(reproduce, "deprl_item_claims", lambda item, place: [Claim("it rises", "1", "1", True)])
    reproduce.deprl("fig8", out=tmp_path)
    assert "cifar10: it rises" in capsys.readouterr().out
