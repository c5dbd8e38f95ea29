import numpy as np
import pytest
from fakes.curves import curves
from matplotlib.figure import Figure

from pfl_lightning.report import choice_of
from pfl_lightning.report.choice import choice_tables
from pfl_lightning.report.client_figures import (
    choice_figure,
    clients_figure,
    samples_figure,
    scatter_axes,
    scatter_figure,
    tail_figure,
)
from pfl_lightning.report.compare_figures import error_rounds_figure
from pfl_lightning.score_kind import ACCURACY, LOSS


@pytest.fixture
def fedrep_and_local(write_run):
    """FedRep with two seeds, and Local with one; two clients."""
    return curves(
        write_run("one", {"stored": [[0.0, 0.2], [0.4, 0.8]]}),
        write_run("two", {"stored": [[0.0, 0.2], [0.6, 1.0]]}, seed=2),
        write_run("three", {"stored": [[0.1, 0.1], [0.3, 0.5]]}, "Local"),
    )


@pytest.fixture
def evaluated(write_run, evaluate):
    """Delta-FL with two seeds, and training losses of two other clients with 10 and 1000 samples."""
    losses = {1: [[3.0, 4.0], [1.0, 2.0]], 2: [[3.0, 4.0], [2.0, 4.0]]}
    runs = [write_run(str(seed), {"global": [[0.2, 0.2], [0.4, 0.8]]}, "DeltaFL", seed=seed) for seed in losses]
    for run, seed in zip(runs, losses, strict=True):
        evaluate(run, "train", losses[seed], samples=[10, 1000], first=2)
    return curves(*runs)


def test_histograms_are_of_each_clients_mean_error_over_the_seeds(fedrep_and_local):
    rows = clients_figure(fedrep_and_local).axes
    # FedRep: accuracies (.4, .8) and (.6, 1) give errors 50 and 10 %; all bins end with the largest error, 70 %
    bars = [bar for bar in rows[0].patches if bar.get_height()]
    assert [bar.get_height() for bar in bars] == [1, 1]
    for bar, error in zip(bars, (10, 50), strict=True):
        assert bar.get_x() <= error + 1e-9
        assert error - 1e-9 <= bar.get_x() + bar.get_width()
    assert rows[0].get_title(loc="left") == "FedRep: mean 30 (dashed), p90 46 (dotted)"
    assert [sum(bar.get_height() for bar in axes.patches) for axes in rows] == [2, 2]


def test_training_losses_are_a_second_column_of_histograms(evaluated):
    test, train = clients_figure(evaluated).axes
    assert test.get_title(loc="left") == "Delta-FL: mean 40 (dashed), p90 56 (dotted)"
    # the means over the seeds are 1.5 and 3
    assert train.get_title(loc="left") == "mean 2.25 (dashed), p90 2.85 (dotted)"
    assert train.get_xlabel() == "final training loss of a client"
    assert [bar.get_height() for bar in train.patches if bar.get_height()] == [1, 1]


def test_histograms_show_losses_as_they_are_and_clients_without_any_error(write_run):
    (axes,) = clients_figure(curves(write_run("loss", {"stored": [[3.0, 5.0]]}, score_name="loss"))).axes
    assert axes.get_title(loc="left").startswith("FedRep: mean 4 ")
    assert axes.get_xlabel() == "final test loss of a client"
    (axes,) = clients_figure(curves(write_run("run", {"stored": [[1.0, 1.0]]}))).axes
    (bar,) = [bar for bar in axes.patches if bar.get_height()]
    assert (bar.get_x(), bar.get_height()) == pytest.approx((0, 2))
    assert bar.get_width() > 0


def test_each_client_is_a_point_at_its_samples_and_its_mean_error(evaluated):
    test, train = samples_figure(evaluated).axes
    assert test.collections[0].get_offsets().tolist() == [[100, pytest.approx(60)], [100, pytest.approx(20)]]
    assert train.collections[0].get_offsets().tolist() == [[10, 1.5], [1000, 3]]
    assert (test.get_ylabel(), train.get_ylabel()) == ("test error (%)", "training loss")


def test_all_points_are_inside_the_panels_that_curves_share(fedrep_and_local):
    panels = samples_figure(fedrep_and_local).axes
    assert [axes.get_title() for axes in panels] == ["FedRep", "Local"]
    assert len({axes.get_ylim() for axes in panels}) == 1
    assert panels[0].get_ylim()[1] > 70  # Local's largest error


ERRORS = {1: [0.1, 0.4, 0.2], 2: [0.1, 0.6, 0.2]}


@pytest.fixture
def folders(write_run):
    """FedAvg with two seeds, and Delta-FL with one."""
    start = [0.1, 0.1, 0.1]
    mean = [
        write_run(f"mean{seed}", {"global": [start, [1 - error for error in errors]]}, "FedAvg", seed=seed)
        for seed, errors in ERRORS.items()
    ]
    return [*mean, write_run("tail", {"global": [start, [0.7, 0.7, 0.7]]}, "DeltaFL")]


def test_a_line_of_the_tail_goes_through_the_percentiles_of_the_clients(folders):
    left, right = tail_figure(curves(*folders)).axes
    mean, tail = left.lines[:2]
    assert (mean.get_label(), tail.get_label()) == ("FedAvg", "Delta-FL")
    values = dict(zip(mean.get_xdata(), mean.get_ydata(), strict=True))
    # three clients stand at 0, 50 and 100 %
    assert [values[percent] for percent in (0, 50, 100)] == pytest.approx([10, 20, 50])
    assert tail.get_ydata() == pytest.approx(np.full(101, 30))
    # the price: means 23.3 and 30, and 90th percentiles 36 and 52; grey lines through the reference
    point = right.lines[0].get_xydata()[0]
    assert point == pytest.approx([80 / 3, 44])
    assert [right.lines[-2].get_xdata()[0], right.lines[-1].get_ydata()[0]] == pytest.approx([80 / 3, 44])


@pytest.mark.slow
@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_losses_that_are_not_finite_are_left_out_of_the_pictures(loss, folders, evaluate):
    """Those of a model that diverges while it is finetuned for an evaluation."""
    for folder in folders:
        evaluate(folder, "train", [[5.0, 6.0], [loss, 3.0]], samples=[30, 10], first=3)
    found = curves(*folders)
    for draw in (error_rounds_figure, samples_figure):
        figure = draw(found)
        figure.draw_without_rendering()
        assert np.isfinite([axes.get_ylim() for axes in figure.axes]).all()


def test_errors_and_training_losses_are_drawn_against_the_sums_of_the_server(folders, evaluate, log):
    for folder in folders:
        evaluate(folder, "train", [[5.0, 6.0], [1.0, 3.0]], samples=[30, 10], first=3)
    assert error_rounds_figure(curves(*folders)).axes[-1].get_xlabel() == "communication rounds"
    log(folders[2], "sums/calls", {5: 20, 10: 40})
    panels = error_rounds_figure(curves(*folders)).axes
    assert [axes.get_xlabel() for axes in panels] == ["", "", "sums at the server", "sums at the server"]
    expected = [(80 / 3, 30), (44, 30), (1.5, 1.5), (3, 3)]  # the mean loss is (30 * 1 + 10 * 3) / 40
    for axes, (mean, tail) in zip(panels, expected, strict=True):
        assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 10], [0, 40]]
        assert [line.get_ydata()[-1] for line in axes.lines] == pytest.approx([mean, tail])
    # the errors at the start, 90 %, do not set the scale
    assert panels[0].get_ylim()[1] == pytest.approx(1.1 * 44)


def test_bars_show_who_picks_which_model(folders, evaluate):
    for folder, losses in zip(folders, ([1.0, 3.0, 1.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]), strict=True):
        evaluate(folder, "choice", [losses, losses])
    choice = choice_of(curves(*folders))
    worth, served = choice_figure(choice).axes
    assert [label.get_text() for label in worth.get_yticklabels()][:3] == ["FedAvg", "Delta-FL", "clients' own choice"]
    heights = [[bar.get_height() for bar in bars] for bars in served.containers]
    assert heights == [
        pytest.approx([100 * row[name] for name in choice.groups]) for row in choice_tables(choice)[1].rows
    ]
    # seed 1: the client in the middle of the errors under FedAvg keeps it, the worst one takes Delta-FL
    assert heights[1] == pytest.approx([0, 0, 100])


SAMPLES = np.array([100, 400, 25, 50])
SCORES = np.array([0.9, 1.0, 0.5, 0.7])


def labels(axes):
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    return [text.get_text() for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high]


@pytest.mark.parametrize(
    ("score_kind", "errors", "label"),
    [(ACCURACY, [10, 0, 50, 30], "test error (%)"), (LOSS, SCORES, "test loss")],
)
def test_a_point_is_a_client_with_its_samples_and_its_error_or_loss(score_kind, errors, label):
    (axes,) = scatter_figure(SAMPLES, SCORES, score_kind, "test").axes
    (points,) = axes.collections
    np.testing.assert_allclose(points.get_offsets(), np.stack([SAMPLES, errors], 1), atol=1e-9)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("test samples of a client", label)


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
