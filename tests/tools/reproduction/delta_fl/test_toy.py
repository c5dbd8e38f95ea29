import pytest
import torch
from fakes.panels import failed, passed
from reproduction.claims import OURS
from reproduction.delta_fl import toy


def test_every_claim_holds_and_the_picture_is_drawn(place):
    claims = toy.toy_claims(place)
    assert failed(claims) == ["acute triangle"]  # where the paper has the model in the middle of a side
    assert [claim.printed == OURS for claim in claims] == [False, False, True, False, False, True, True]
    assert (place.folder / "fig3.png").read_bytes().startswith(b"\x89PNG")


def test_the_measured_numbers_are_those_of_the_derivation():
    largest, _, means, _ = toy.loss_claims(toy.models())
    assert largest.measured == "3.111, 3.000"  # 28/9 and 3
    assert means.measured == "2.556, 2.667"  # 23/9 and 8/3


def test_claims_fail_for_models_that_are_swapped():
    found = toy.models()
    swapped = {"FedAvg": found["Delta-FL"], "Delta-FL": found["FedAvg"]}
    assert passed(toy.loss_claims(swapped)) == [False, False, False, False]


def test_mixtures_are_uniform():
    # every weight is Beta(1, 2): below 1/2 with 1 - (1/2)^2; the standard error of 200,000 draws is 0.001
    mixtures = toy.uniform_mixtures(toy.DRAWS)
    torch.testing.assert_close(mixtures.sum(-1), torch.ones(toy.DRAWS, dtype=torch.float64))
    assert (mixtures < 0.5).double().mean(0).tolist() == pytest.approx([0.75] * 3, abs=0.005)
