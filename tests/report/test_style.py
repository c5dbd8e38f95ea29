from pfl_lightning.cli.parser import CHOICES
from pfl_lightning.report.compare_curves import DOUBLED, PLAIN
from pfl_lightning.report.style import LOOKS, base_of, looks_of


def drawn(*labels):
    return dict(zip(labels, looks_of(labels), strict=True))


def test_every_method_has_a_look_of_its_own():
    names = {PLAIN.get(name, name) for name in CHOICES["model"]} | {"FedAvg-FT"}
    assert names <= LOOKS.keys()
    assert len(set(LOOKS.values())) == len(LOOKS)


def test_a_method_looks_the_same_whatever_else_is_drawn():
    alone, among = drawn("FedRep"), drawn("Mine", "FedAvg", "FedRep", "Ditto")
    assert among["FedRep"] == alone["FedRep"]


def test_all_methods_can_be_told_apart_without_colours():
    looks = looks_of([*LOOKS, *DOUBLED.values(), "FLANP-FT"])
    seen = {(look["marker"], look["markerfacecolor"] == "white", look["linestyle"]) for look in looks}
    assert len(seen) == len(looks) >= 22


def test_doubling_keeps_the_colour_and_dashes_the_line():
    variants = {"FedRep-SRPFL": "FedRep", "Mine + doubling": "Mine", "FLANP, lr=0.1": "FedAvg, lr=0.1"}
    for doubled, plain in variants.items():
        looks = drawn(plain, doubled)
        assert base_of(doubled) == plain
        assert looks[plain]["color"] == looks[doubled]["color"]
        assert (looks[plain]["linestyle"], looks[doubled]["linestyle"]) == ("-", "--")


def test_own_methods_and_variants_take_the_colours_that_are_left():
    variants = [f"Delta-FL, conformity={share}" for share in (0.8, 0.5, 0.1)]
    looks = drawn("FedAvg", "FedRep", *variants)
    assert len({look["color"] for look in looks.values()}) == 5
    again = drawn("FedAvg", "FedRep", *variants[:2])
    assert [again[label] for label in variants[:2]] == [looks[label] for label in variants[:2]]
