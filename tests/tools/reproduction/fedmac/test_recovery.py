import pytest
from fakes.panels import failed
from reproduction.fedmac import recovery


@pytest.fixture(scope="module")
def small():
    """Fewer and smaller problems, with as many rows as tell the programs apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "PROBLEMS", 10)
        patch.setattr(recovery, "DIMENSION", 40)
        patch.setattr(recovery, "ROWS", range(2, 41, 2))
        yield recovery.measure()


def numbers_of(found, part, monkeypatch):
    monkeypatch.setattr(recovery, "measure", lambda: found)
    return recovery.numbers(part)


def test_every_claim_holds_and_the_picture_is_drawn(small, part, claims_about, monkeypatch):
    here = part(paper="fedmac", item="fig1", title="")
    assert failed(claims_about(here, numbers_of(small, here, monkeypatch))) == []
    assert (here.place.folder / "fig1.png").read_bytes().startswith(b"\x89PNG")


def test_claims_fail_for_programs_that_are_swapped(small, part, claims_about, monkeypatch):
    here = part(paper="fedmac", item="fig1", title="")
    swapped = small | {"FedMac": small["pFedMe"], "pFedMe": small["FedMac"]}
    assert len(failed(claims_about(here, numbers_of(swapped, here, monkeypatch)))) == 1
    slower = small | {"FedMac": small["FedMac"]._replace(rates=small["plain l1"].rates)}
    assert len(failed(claims_about(here, numbers_of(slower, here, monkeypatch)))) == 2


def test_half_of_the_signals_are_found_between_the_rows_that_were_tried(small):
    # 0.4 with 4 rows and 0.6 with 6; a rate that falls again counts as the one before
    rates = small["FedMac"].rates.copy()
    rates[:] = [0.0, 0.4, 0.6, 0.3, *[1.0] * (len(rates) - 4)]
    assert small["FedMac"]._replace(rates=rates).half == pytest.approx(5)
