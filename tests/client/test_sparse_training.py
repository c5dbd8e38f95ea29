"""Which entries of a model a client holds: densities, first masks, and the search for better ones."""

from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.client.sparse_training import erk_densities, first_masks, moved_masks, random_scores

CONVNET = {"conv": (16, 3, 3, 3), "fc1": (64, 256), "fc2": (10, 64)}  # 432, 16384 and 640 entries


@pytest.mark.parametrize(
    ("density", "expected"),
    [
        # sums of dimensions 25, 320 and 74; conv and fc2 are full, and fc1 has the other 17456 / 2 - 432 - 640 = 7656
        (0.5, (1.0, 7656 / 16384, 1.0)),
        (0.2, tuple(0.2 * 17456 / (25 + 320 + 74) * share for share in (25 / 432, 320 / 16384, 74 / 640))),
    ],
)
def test_densities_follow_the_sums_of_the_dimensions_until_a_tensor_is_full(density, expected):
    assert erk_densities(CONVNET, density) == pytest.approx(dict(zip(CONVNET, expected, strict=True)), rel=1e-12)


shapes = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=6)


@given(shapes, st.floats(1e-4, 1))
def test_the_density_of_the_model_is_the_one_that_was_asked_for(shapes, density):
    named = dict(enumerate(shapes))
    densities = erk_densities(named, density)
    sizes = {name: torch.Size(shape).numel() for name, shape in named.items()}
    assert all(0 < share <= 1 for share in densities.values())
    assert sum(densities[name] * sizes[name] for name in sizes) == pytest.approx(
        density * sum(sizes.values()), rel=1e-9
    )
    rest = {densities[name] * sizes[name] / sum(named[name]) for name in sizes if densities[name] < 1}
    assert max(rest, default=1.0) == pytest.approx(min(rest, default=1.0), rel=1e-9), "in proportion, unless full"


def test_first_masks_have_the_same_number_of_ones_at_every_client():
    model = {"weight": torch.zeros(18, 10), "bias": torch.zeros(18)}
    # 0.35 * 180 is 62.99999999999999, and 0.35 * 18 is 6.3
    for density, layers, ones in ((0.35, "uniform", (63, 6)), (1.0, "erk", (180, 18)), (1e-3, "uniform", (0, 0))):
        masks = first_masks((1,), 3, model, density, layers)
        assert [mask.flatten(1).sum(1).tolist() for mask in masks.values()] == [[count] * 3 for count in ones]


@pytest.mark.parametrize("layers", ["erk", "uniform"])
def test_a_single_number_is_held_by_all(layers):
    model = {"scale": torch.tensor(2.0), "slope": torch.ones(1), "weight": torch.zeros(4, 5)}
    masks = first_masks((1,), 3, model, 0.25, layers)
    assert masks["scale"].tolist() == [True] * 3
    assert masks["slope"].tolist() == [[True]] * 3


def test_every_entry_is_as_likely_and_every_client_has_a_mask_of_its_own():
    model = {"one": torch.zeros(5, 8), "other": torch.zeros(5, 8)}
    masks = first_masks((1,), 400, model, 0.25, "uniform")
    held = masks["one"].sum(0)  # binomial: mean 100, standard deviation 8.7
    assert ((held > 60) & (held < 140)).all()
    assert not torch.equal(masks["one"], masks["other"])
    assert torch.equal(masks["one"][:7], first_masks((1,), 7, model, 0.25, "uniform")["one"])
    assert not torch.equal(masks["one"], first_masks((2,), 400, model, 0.25, "uniform")["one"])


def moved(weights, mask, scores, ratio):
    rows = [{"w": torch.tensor(values)[None]} for values in (weights, [bool(one) for one in mask], scores)]
    return moved_masks(*rows, ratio)["w"][0].int().tolist()


def test_a_share_that_is_not_exact_in_binary_gives_up_no_weight_too_many():
    # 0.07 * 100 is 7.000000000000001
    weights = [1.0 + place for place in range(100)] + [0.0] * 100
    after = moved(weights, [1] * 100 + [0] * 100, [0.0] * 100 + [1.0] * 100, ratio=0.07)
    assert after == [0] * 7 + [1] * 93 + [1] * 7 + [0] * 93


def moved_by_hand(weights, mask, scores, ratio):
    """The rule for one client, with sorted lists."""
    held = [place for place, one in enumerate(mask) if one]
    count = ceil(ratio * len(held))
    held = sorted(held, key=lambda place: -abs(weights[place]))[: len(held) - count]
    free = [place for place in range(len(mask)) if place not in held]
    return {*held, *sorted(free, key=lambda place: -abs(scores[place]))[:count]}


few = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0])  # so that there are equals
entries = st.lists(st.tuples(few, st.booleans(), few), min_size=1, max_size=12)


@given(entries, st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
def test_masks_keep_their_number_of_ones_whatever_is_asked_for(entries, ratio):
    weights, mask, scores = zip(*entries, strict=True)
    after = moved(weights, mask, scores, ratio)
    assert sum(after) == sum(mask)
    assert {place for place, one in enumerate(after) if one} == moved_by_hand(weights, mask, scores, ratio)


def test_random_scores_are_those_of_a_client_wherever_it_stands():
    masks = {"w": torch.zeros(3, 4, 5, dtype=torch.bool)}
    scores = random_scores((1, "train", 2), torch.tensor([7, 2, 9]), masks)["w"]
    alone = random_scores((1, "train", 2), torch.tensor([2]), {"w": masks["w"][:1]})["w"]
    assert scores.shape == masks["w"].shape
    assert torch.equal(scores[1], alone[0])
    assert not torch.equal(scores[0], scores[1])
