import numpy as np
import pytest
from matplotlib.figure import Figure

from pfl_lightning.report import scatter_figure
from pfl_lightning.report.client_figures import scatter_axes
from pfl_lightning.score_kind import ACCURACY, LOSS

SAMPLES, SCORES = np.array([100, 400, 25, 50]), np.array([0.9, 1.0, 0.5, 0.7])


def labels(axes):
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    return [text.get_text() for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high]


def test_a_point_is_a_client_with_its_samples_and_its_error():
    (axes,) = scatter_figure(SAMPLES, SCORES, ACCURACY, "test").axes
    (points,) = axes.collections
    np.testing.assert_allclose(points.get_offsets(), [[100, 10], [400, 0], [25, 50], [50, 30]], atol=1e-9)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("test samples of a client", "test error (%)")


def test_losses_are_drawn_as_they_are():
    (axes,) = scatter_figure(SAMPLES, SCORES, LOSS, "train").axes
    np.testing.assert_allclose(axes.collections[0].get_offsets()[:, 1], SCORES)
    assert axes.get_ylabel() == "train loss"


def test_the_lines_are_the_mean_and_the_90th_percentile_of_the_clients():
    (axes,) = scatter_figure(SAMPLES, SCORES, ACCURACY, "test").axes
    mean, p90 = axes.lines
    assert mean.get_ydata()[0] == pytest.approx(22.5)
    assert p90.get_ydata()[0] == pytest.approx(44)  # seven tenths of the way from 30 to 50
    assert [line.get_label() for line in (mean, p90)] == ["mean 22.5", "p90 44"]


@pytest.mark.parametrize(
    ("samples", "shown"),
    [
        ([30, 1500], ["50", "100", "200", "500", "1,000"]),
        ([30, 15000], ["100", "1,000", "10,000"]),
        ([52, 57], ["52", "53", "54", "55", "56", "57"]),
    ],
)
def test_the_samples_can_be_read_off(samples, shown):
    axes = Figure().subplots()
    scatter_axes(axes, np.array(samples), np.zeros(len(samples)))
    assert axes.get_xscale() == "log"
    assert labels(axes) == shown
