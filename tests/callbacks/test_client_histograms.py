import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, EventAccumulator

from pfl_lightning.callbacks import ClientHistograms, PercentileErrors
from pfl_lightning.methods import FedRep
from pfl_lightning.models import MLP


@pytest.fixture
def board(ragged_data, fit, tmp_path):
    """What TensorBoard has of a run of two rounds that is then resumed for two more."""
    for rounds in (2, 4):
        method = FedRep(network=lambda shape, classes: MLP(shape, classes, hidden=(4,)), head_epochs=1, eval_epochs=1)
        fit(
            method,
            ragged_data(eval_train=True),
            rounds,
            callbacks=[PercentileErrors(), ClientHistograms()],
            logger=TensorBoardLogger(tmp_path, "", "board"),
            ckpt_path=tmp_path / "board/checkpoints/last.ckpt" if rounds > 2 else None,
        )
    return EventAccumulator(str(tmp_path / "board"), {HISTOGRAMS: 0}).Reload()


def test_each_evaluation_has_a_histogram_of_the_clients_errors(board):
    tags = {"test/finetuned/error", "test/stored/error", "train/finetuned/loss", "train/stored/loss"}
    assert set(board.Tags()["histograms"]) == tags
    for model in ("finetuned", "stored"):
        # EventAccumulator reads event files of one second in the order of their names, in which 10 is before 9
        events = sorted(board.Histograms(f"test/{model}/error"), key=lambda event: event.step)
        assert [event.step for event in events] == [0, 2, 4]
        scalars = sorted(board.Scalars(f"test/{model}/accuracy/mean"), key=lambda event: event.step)
        for event, scalar in zip(events, scalars, strict=True):
            histogram = event.histogram_value
            assert histogram.num == sum(histogram.bucket) == 6  # clients
            assert histogram.sum / histogram.num == pytest.approx(1 - scalar.value)
            # twenty bins of 5 %, of which the outer empty ones are left out
            assert np.diff(histogram.bucket_limit) == pytest.approx(0.05)


@pytest.mark.parametrize("model", ["finetuned", "stored"])
def test_each_evaluation_has_a_histogram_of_the_clients_losses_on_their_training_samples(model, board):
    histograms = {event.step: event.histogram_value for event in board.Histograms(f"train/{model}/loss")}
    means = {event.step: event.value for event in board.Scalars(f"train/{model}/loss/mean")}
    assert {step: histogram.sum / histogram.num for step, histogram in histograms.items()} == pytest.approx(means)
    assert {step: histogram.num for step, histogram in histograms.items()} == dict.fromkeys((0, 2, 4), 6)
