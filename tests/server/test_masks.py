from math import ceil, log2

import pytest
import torch

from pfl_lightning.server.masks import Masks

SIZES = [2, 3, 9, 33]


def mask(masks, ids, columns=64):
    """The sum of the masks of some clients."""
    return masks.hide(ids, {"w": torch.zeros(columns, dtype=torch.int64)})["w"]


@pytest.mark.parametrize("size", SIZES)
def test_masks_cancel_in_the_sum_over_everybody(size):
    ids = 3 * torch.arange(size) + 1
    masks = Masks(ids, (1, "round"))
    alone = torch.stack([mask(masks, client) for client in ids[:, None]])
    assert (alone != 0).all()
    assert not alone.sum(0).any()
    assert not mask(masks, ids).any()


@pytest.mark.parametrize("size", SIZES)
def test_the_mask_of_a_chunk_is_the_sum_of_the_masks_of_its_clients(size):
    ids = torch.arange(size)
    masks = Masks(ids, (2,))
    chunk = ids[: size // 2 + 1]
    assert torch.equal(mask(masks, chunk), torch.stack([mask(masks, client) for client in chunk[:, None]]).sum(0))


@pytest.mark.parametrize("size", SIZES)
def test_a_client_shares_masks_with_about_log2_others(size):
    share = torch.zeros(size, size, dtype=torch.bool).scatter_(1, Masks(torch.arange(size), (3,)).ahead, value=True)
    share |= share.T.clone()
    assert not share.diagonal().any()
    assert (share.sum(1) == min(size - 1, 2 * ceil(log2(size) / 2))).all()


def test_the_ring_the_seeds_and_the_names_follow_from_the_key():
    ids, one = torch.arange(50), torch.tensor([4])
    words = {name: torch.zeros(20, dtype=torch.int64) for name in ("w", "b")}
    first, again, other = (Masks(ids, key).hide(one, words) for key in ((1, 5), (1, 5), (1, 6)))
    assert torch.equal(first["w"], again["w"])
    assert not (first["w"] == other["w"]).any()
    assert not (first["w"] == first["b"]).any()
    assert not torch.equal(Masks(ids, (1, 5)).ring, Masks(ids, (1, 6)).ring)


def test_words_drawn_in_blocks_are_those_drawn_at_once(monkeypatch):
    masks, some = Masks(torch.arange(20), (1,)), torch.tensor([3, 11])
    whole = mask(masks, some, 1000)
    monkeypatch.setattr("pfl_lightning.server.masks.CPU_BLOCK", 7)
    assert torch.equal(mask(masks, some, 1000), whole)
