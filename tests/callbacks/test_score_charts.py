import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from pfl_lightning.callbacks import PercentileErrors, ScoreCharts
from pfl_lightning.callbacks.board import Board
from pfl_lightning.methods import FedRep
from pfl_lightning.models import MLP


def shown(data, fit, folder, percentiles=(25, 50, 75)):
    """The charts of a run by their titles, and the tags of its scalars."""
    method = FedRep(network=lambda shape, classes: MLP(shape, classes, hidden=(4,)), head_epochs=1, eval_epochs=1)
    callbacks = [PercentileErrors(percentiles), ScoreCharts()]
    fit(method, data, 1, callbacks=callbacks, logger=Board(folder, "", "board"))
    board = EventAccumulator(str(folder / "board")).Reload()
    (event,) = board.Tensors("custom_scalars__config__")
    layout = Layout()
    layout.ParseFromString(event.tensor_proto.string_val[0])
    (category,) = layout.category
    return {chart.title: chart for chart in category.chart}, set(board.Tags()["scalars"])


def test_each_model_has_a_chart_of_median_quartiles_and_worst_of_tags_that_are_logged(ragged_data, fit, tmp_path):
    charts, logged = shown(ragged_data(), fit, tmp_path)
    assert list(charts) == [
        "test/accuracy of every method",
        *(f"{model}: median, quartiles, worst" for model in ("finetuned", "stored")),
        "median of every model",
    ]
    for model in ("finetuned", "stored"):
        inner, outer = charts[f"{model}: median, quartiles, worst"].margin.series
        low, middle, high = (f"test_percentiles/{model}/accuracy/p{percentile}" for percentile in (25, 50, 75))
        assert [inner.lower, inner.value, inner.upper] == [low, middle, high]
        worst = f"test/{model}/accuracy/worst"
        assert [outer.lower, outer.value, outer.upper] == [worst, worst, low]
        assert {low, middle, high, worst} <= logged


@pytest.mark.parametrize(
    ("title", "tags"),
    [
        ("test/accuracy of every method", {"test/accuracy"}),
        ("median of every model", {f"test_percentiles/{model}/accuracy/p50" for model in ("finetuned", "stored")}),
    ],
)
def test_a_chart_of_all_methods_shows_one_value_of_each(title, tags, ragged_data, fit, tmp_path):
    charts, logged = shown(ragged_data(), fit, tmp_path)
    (pattern,) = charts[title].multiline.tag
    assert {tag for tag in logged if re.search(pattern, tag)} == tags


def test_without_quartiles_there_is_the_headline_alone(ragged_data, fit, tmp_path):
    charts, _ = shown(ragged_data(), fit, tmp_path, percentiles=(10, 50))
    assert list(charts) == ["test/accuracy of every method"]
