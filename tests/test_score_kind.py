import pytest
import torch

from pfl_lightning.score_kind import ACCURACY, LOSS


def test_an_accuracy_is_shown_in_percent_and_a_loss_as_it_is():
    assert ACCURACY.show(0.1234) + ACCURACY.unit == "12.3 (%)"
    assert LOSS.show(0.12345) + LOSS.unit == "0.1235"


def test_errors_are_the_lower_the_better():
    scores = torch.tensor([0.25, 1.0])
    assert ACCURACY.errors(scores).tolist() == pytest.approx([0.75, 0.0])
    assert LOSS.errors(scores) is scores
    assert (ACCURACY.error_name, LOSS.error_name) == ("error", "loss")
