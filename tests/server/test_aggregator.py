import pytest
import torch
from fakes.sums import add

from pfl_lightning.server import Aggregator, client_weights
from pfl_lightning.tree import mix

IDS = torch.tensor([7, 2, 9])
WEIGHTS = client_weights(torch.tensor([1, 3, 4]), "samples")


def test_a_sum_in_one_chunk_is_the_weighted_mean_bit_for_bit():
    tree = {"w": torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0)).double()}
    total = add(Aggregator().start(IDS, (1,)), IDS, WEIGHTS, tree)
    assert torch.equal(total.result()["w"], mix(WEIGHTS, tree)["w"])


def test_chunks_add_up_and_those_who_abstain_change_nothing():
    # (1 * 8 + 3 * 16) / 8 = 7; the last client's 4 / 8 are missing
    total = Aggregator().start(IDS, (1,))
    for chunk, value in ((slice(0, 1), 8.0), (slice(1, 2), 16.0)):
        add(total, IDS[chunk], WEIGHTS[chunk], {"w": torch.tensor([value])})
    total.abstain(IDS[2:])
    assert total.result()["w"] == 7


def test_calls_and_uploaded_bytes_are_counted():
    sums = Aggregator()
    for number in range(2):
        tree = {"w": torch.zeros(2, 5), "loss": torch.zeros(2)}
        total = add(sums.start(IDS, (number,)), IDS[:2], WEIGHTS[:2].float(), tree)
        total.abstain(IDS[2:])
        total.result()
    # two clients, each with 5 + 1 numbers of 4 bytes; twice
    assert sums.scalars() == {"sums/calls": 2.0, "sums/bytes": pytest.approx(2 * 2 * 6 * 4)}
