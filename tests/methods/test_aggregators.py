"""Methods over secure sums: the same models, and nothing else reaches the server."""

from functools import partial

import pytest
import torch
from fakes.methods import built

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedRep, Local, Method
from pfl_lightning.server import Aggregator, SecureAggregator
from pfl_lightning.system import Participation


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


def run(fit, data, make, sums, rounds=3, **options):
    method = built(make, data, aggregator=sums, **options)
    return method, fit(method, data, rounds, type(sums).__name__)


@pytest.mark.parametrize("make", [FedAvg, partial(FedRep, head_epochs=2)])
def test_secure_sums_give_the_plain_models_up_to_rounding(make, ragged_data, fit):
    (plain, _), (secure, trainer) = (run(fit, ragged_data(), make, sums()) for sums in (Aggregator, SecureAggregator))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(secure.state_dict()[name], tensor, atol=1e-10, rtol=0)
    assert any(not torch.equal(secure.state_dict()[name], t) for name, t in plain.state_dict().items())
    torch.testing.assert_close(
        trainer.callback_metrics["train/loss"], plain.trainer.callback_metrics["train/loss"], atol=1e-10, rtol=0
    )


def test_chunks_and_masks_do_not_change_a_bit_of_a_run(ragged_data, fit):
    # sequentially, since batches of other sizes may round differently
    runs = [
        run(fit, ragged_data(), FedAvg, SecureAggregator(masks=masks), backend="sequential", chunk_size=chunk_size)[0]
        for masks, chunk_size in ((True, None), (True, 2), (False, 1))
    ]
    for name, tensor in runs[0].state_dict().items():
        assert all(torch.equal(tensor, other.state_dict()[name]) for other in runs[1:])


@pytest.mark.parametrize("sums", [Aggregator, SecureAggregator])
def test_a_round_is_one_sum_of_uploads_and_losses(sums, ragged_data, fit):
    method, trainer = run(fit, ragged_data(participation=Participation(4)), FedAvg, sums())
    numbers = (
        sum(p.numel() for p in method.network.parameters()) + 1 + (sums is SecureAggregator)
    )  # the loss, the weight
    assert trainer.callback_metrics["sums/calls"] == 3
    assert trainer.callback_metrics["sums/bytes"] == 3 * 4 * numbers * 8


class LargestTwo(Method):
    """Only the two largest clients train."""

    def select_clients(self, batch):
        return batch.take(torch.arange(len(batch.examples)) < 2)


def test_clients_that_are_not_chosen_upload_masked_zeros(ragged_data, fit):
    (plain, _), (secure, trainer) = (
        run(fit, ragged_data(), LargestTwo, sums(), 1) for sums in (Aggregator, SecureAggregator)
    )
    for name, tensor in plain.network.state_dict().items():
        torch.testing.assert_close(secure.network.state_dict()[name], tensor, atol=1e-10, rtol=0)
    numbers = sum(p.numel() for p in plain.network.parameters()) + 2
    assert (plain.aggregator.bytes, secure.aggregator.bytes) == (2 * (numbers - 1) * 8, 6 * numbers * 8)
    assert trainer.callback_metrics["system/cohort"] == 2


def test_a_method_that_shares_nothing_needs_no_sum(ragged_data, fit):
    method = built(Local, ragged_data())
    fit(method, ragged_data(), 2)
    assert method.aggregator.scalars() == {"sums/calls": 0.0, "sums/bytes": 0.0}
    assert method.trainer.callback_metrics["train/loss"] > 0


def test_two_methods_do_not_share_their_counts():
    assert FedAvg().aggregator is not FedAvg().aggregator


def test_a_diverging_round_and_a_lonely_client_are_refused(ragged_data, fit):
    with pytest.raises(PflError, match=r"^model.aggregator.limit: 1 is not possible .* smaller model.lr"):
        run(fit, ragged_data(), FedAvg, SecureAggregator(limit=1.0), lr=50.0)
    with pytest.raises(PflError, match=r"^model.aggregator: 1 participant in a round is not possible"):
        run(fit, ragged_data(participation=Participation(1)), FedAvg, SecureAggregator())
