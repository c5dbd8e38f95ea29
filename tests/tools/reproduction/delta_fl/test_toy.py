import pytest
import torch
from fakes.panels import failed
from reproduction.claims import OURS
from reproduction.delta_fl import toy


def test_every_claim_holds_and_the_picture_is_drawn(part, claims_about):
    here = part(paper="delta_fl", item="fig3", title="")
    found = claims_about(here, toy.numbers(here))
    assert failed(found) == ["acute triangle"]  # where the paper has the model in the middle of a side
    assert [claim.printed == OURS for claim in found] == [False, False, True, False, False, True, True]
    assert (here.place.folder / "fig3.png").read_bytes().startswith(b"\x89PNG")
    assert found[0].measured == "2.00, 0.00"
    assert found[3].measured == "3.111, 3.000"  # 28/9 and 3
    assert found[5].measured == "2.556, 2.667"  # 23/9 and 8/3


def test_claims_fail_for_models_that_are_swapped(part, claims_about, monkeypatch):
    here = part(paper="delta_fl", item="fig3", title="")
    models = dict(zip(toy.NAMES, reversed(toy.models().values()), strict=True))
    monkeypatch.setattr(toy, "models", lambda: models)
    found = claims_about(here, toy.numbers(here))
    assert len(failed(found[3:])) == 4


def test_mixtures_are_uniform():
    # every weight is Beta(1, 2): below 1/2 with 1 - (1/2)^2; the standard error of 200,000 draws is 0.001
    mixtures = toy.uniform_mixtures(toy.DRAWS)
    torch.testing.assert_close(mixtures.sum(-1), torch.ones(toy.DRAWS, dtype=torch.float64))
    assert (mixtures < 0.5).double().mean(0).tolist() == pytest.approx([0.75] * 3, abs=0.005)
