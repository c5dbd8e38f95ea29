"""Methods over secure sums: the same models, and nothing else reaches the server."""

from functools import partial

import pytest
from fakes.methods import distance

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedRep
from pfl_lightning.server import Aggregator, DPAggregator, SecureAggregator
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("make", [FedAvg, partial(FedRep, head_epochs=2)])
def test_secure_sums_give_the_plain_models_up_to_rounding(make, train):
    plain, secure = (train(make, 3, aggregator=sums()) for sums in (Aggregator, SecureAggregator))
    assert 0 < distance(plain, secure) < 1e-10
    losses = [float(method.trainer.callback_metrics["train/loss"]) for method in (plain, secure)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-10)


@pytest.mark.parametrize("sums", [Aggregator, SecureAggregator])
def test_a_round_is_one_sum_of_uploads_and_losses(sums, ragged_data, train):
    method = train(FedAvg, 3, ragged_data(participation=Participation(4)), aggregator=sums())
    others = 1 + (sums is SecureAggregator)  # the loss, the weight
    numbers, logged = sum(p.numel() for p in method.parameters()) + others, method.trainer.callback_metrics
    assert (logged["sums/calls"], logged["sums/bytes"]) == (3, 3 * 4 * numbers * 8)


def test_two_methods_do_not_share_their_counts():
    assert FedAvg().aggregator is not FedAvg().aggregator


class Alone(FedAvg):
    keeps = "all"


class Reading(FedRep):
    def server_update(self, mean, batch):
        self.clients.mean(self.kept)
        super().server_update(mean, batch)


@pytest.mark.parametrize("sums", [SecureAggregator, partial(DPAggregator, noise_multiplier=1.0)])
@pytest.mark.parametrize(
    ("make", "why"), [(Alone, "with Alone, whose clients upload no model"), (Reading, "with Reading, whose s")]
)
def test_what_an_aggregator_could_not_hide_is_refused(make, why, sums, train):
    with pytest.raises(PflError, match=rf"^model.aggregator: \w+Aggregator is not possible {why}"):
        train(make, 1, aggregator=sums(), weighting="uniform", batch_norm="local")
    train(make, 1)


def test_a_precision_that_clips_nothing_exactly_is_refused_before_the_first_round(ragged_data, fit, tmp_path):
    method = FedAvg(aggregator=DPAggregator(), weighting="uniform")
    with pytest.raises(PflError, match=r"^trainer.precision: bf16-true is not possible with DPAggregator, whose clip"):
        fit(method, ragged_data(), 1, precision="bf16-true")
    assert [*tmp_path.iterdir()] == []


def test_a_diverging_round_and_a_lonely_client_are_refused(ragged_data, train):
    with pytest.raises(PflError, match=r"^model.aggregator.limit: 1 is not possible .* smaller model.local.lr"):
        train(FedAvg, 3, aggregator=SecureAggregator(limit=1.0), lr=50.0)
    with pytest.raises(PflError, match=r"^model.aggregator: 1 participant in a round is not possible"):
        train(FedAvg, 1, ragged_data(participation=Participation(1)), aggregator=SecureAggregator())
