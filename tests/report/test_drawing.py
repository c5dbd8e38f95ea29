import pytest

from pfl_lightning import methods
from pfl_lightning.report.drawing import LOOKS, looks_of
from pfl_lightning.settings.registry import choices


def drawn(*labels):
    return dict(zip(labels, looks_of(labels), strict=True))


@pytest.mark.slow
def test_twenty_methods_have_a_look_of_their_own():
    names = {getattr(methods, name).display_name for name in choices()["model"]} | {"FedAvg-FT"}
    assert LOOKS.keys() <= names
    assert len(set(LOOKS.values())) == len(LOOKS) == 20


def test_a_method_looks_the_same_whatever_else_is_drawn():
    among = drawn("Mine", "FedAvg", "FedRep", "Ditto")
    assert among["FedRep"] == drawn("FedRep")["FedRep"]


def test_all_methods_can_be_told_apart_without_colours():
    looks = looks_of([*LOOKS, *(f"{name} + doubling" for name in LOOKS)], [*LOOKS, *LOOKS])
    seen = {(look["marker"], look["markerfacecolor"] == "white", look["linestyle"]) for look in looks}
    assert len(seen) == len(looks) == 40


def test_thirty_curves_differ_in_marker_and_in_colour_with_marker():
    looks = looks_of(["FedAvg", "FedRep", *(f"FedRep, lr={number}" for number in range(28))])
    assert len({(look["marker"], look["markerfacecolor"] == "white") for look in looks}) == 30


def test_doubling_keeps_the_colour_and_dashes_the_line():
    for doubled, plain in {"FedRep-SRPFL": "FedRep", "Mine + doubling": "Mine"}.items():
        one, other = looks_of([plain, doubled], [plain, plain])
        assert one["color"] == other["color"]
        assert (one["linestyle"], other["linestyle"]) == ("-", "--")


def test_own_methods_and_variants_take_the_colours_that_are_left():
    variants = [f"Delta-FL, conformity={share}" for share in (0.8, 0.5, 0.1)]
    looks = drawn("FedAvg", "FedRep", *variants)
    assert len({look["color"] for look in looks.values()}) == 5
    again = drawn("FedAvg", "FedRep", *variants[:2])
    assert [again[label] for label in variants[:2]] == [looks[label] for label in variants[:2]]
