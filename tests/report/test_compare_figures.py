import numpy as np
import pytest
from fakes.curves import curves

from pfl_lightning.report import save_figure, time_figure
from pfl_lightning.report.compare_figures import cohort_figure, cohorts_differ, cost_figure
from pfl_lightning.report.measures import COMMUNICATION, LINK, ROUNDS


@pytest.fixture
def three_methods(write_run, doubling):
    """FedRep with two seeds, FedRep-SRPFL and Local with one; two clients."""
    return curves(
        write_run("one", {"stored": [[0.0, 0.2], [0.4, 0.8]]}, compute=[0, 8]),
        write_run("two", {"stored": [[0.0, 0.2], [0.6, 1.0]]}, compute=[0, 12], seed=2),
        write_run("three", {"stored": [[0.0, 0.2], [0.5, 0.5]]}, callbacks=[doubling]),
        write_run("four", {"stored": [[0.1, 0.1], [0.3, 0.5]]}, "Local"),
    )


def test_a_line_is_the_mean_of_scores_and_times_and_a_band_their_deviation(three_methods):
    panels = time_figure(three_methods, [0, 10]).axes
    assert [axes.get_title() for axes in panels] == [f"{time} s of communication per round" for time in (0, 10)]
    for axes, last in zip(panels, (10, 110), strict=True):
        line = axes.lines[0]
        assert line.get_xdata().tolist() == [0, last]
        assert line.get_ydata() == pytest.approx([10, 70])
        # accuracies 60 and 80 % at the end: sample deviation sqrt(2 * 10^2); the one curve with several seeds
        (band,) = axes.collections
        edges = band.get_paths()[0].vertices
        assert edges[edges[:, 0] == last, 1].max() == pytest.approx(70 + np.sqrt(200))
        assert edges[edges[:, 0] == last, 1].min() == pytest.approx(70 - np.sqrt(200))


def test_a_method_looks_the_same_in_all_panels_and_is_named_once(three_methods):
    figure = time_figure(three_methods, [0, 10, 100])
    first, *rest = (
        [(line.get_label(), line.get_color(), line.get_linestyle()) for line in axes.lines] for axes in figure.axes
    )
    assert rest == [first, first]
    assert [style for _, _, style in first] == ["-", "--", "-"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedRep", "FedRep-SRPFL", "Local"]


def test_many_curves_with_long_names_are_named_below_the_panels_within_the_figure(write_run, tmp_path):
    networks = [{"class_path": "my.Net", "init_args": {"a_long_option": n, "another_long_option": n}} for n in range(9)]
    runs = [write_run(f"{n}", {"stored": [[0.2], [0.5]]}, model={"network": net}) for n, net in enumerate(networks)]
    figure = time_figure(curves(*runs), [0, 10])
    save_figure(figure, tmp_path / "figure.svg")
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 < min(axes.get_window_extent().y0 for axes in figure.axes)
    assert max(len(line) for text in legend.get_texts() for line in text.get_text().split("\n")) < 40


def test_a_single_evaluation_can_be_seen(write_run):
    figure = time_figure(curves(write_run("short", {"stored": [[0.2]]})), [0])
    (line,) = figure.axes[0].lines
    assert (line.get_marker() != "None", line.get_markevery()) == (True, None)


def test_losses_are_drawn_as_they_are(write_run):
    folder = write_run("run", {"stored": [[3.0, 5.0], [1.0, 2.0]]}, score_name="loss")
    (axes,) = cost_figure(curves(folder), ROUNDS).axes
    assert axes.get_ylabel() == "test loss\nmean over clients"
    assert [axes.lines[0].get_xdata().tolist(), axes.lines[0].get_ydata().tolist()] == [[0, 10], [4, 1.5]]


def test_bits_are_means_over_the_seeds_in_readable_units(write_run, log):
    folders = []
    for seed, sent in ((1, 2e9), (2, 4e9)):
        folder = write_run(str(seed), {"stored": [[0.2], [0.6]]}, seed=seed)
        log(folder, "bits/paper", {5: sent / 200, 10: sent / 100})
        folders.append(log(folder, "bits/total", {5: sent / 2, 10: sent}))
    clients, link = cost_figure(curves(*folders), COMMUNICATION, LINK).axes
    assert [axes.get_xlabel() for axes in (clients, link)] == ["communication (Gbit)", "communication (Mbit)"]
    assert clients.lines[0].get_xdata().tolist() == [0, 3]
    assert link.lines[0].get_xdata().tolist() == [0, 30]
    assert link.lines[0].get_ydata() == pytest.approx([20, 60])


@pytest.fixture
def tail(write_run, log):
    """Three and four clients, then one and two, with two seeds."""
    runs = [write_run(str(seed), {"global": [[0.5]]}, "DeltaFL", seed=seed) for seed in (1, 2)]
    return [log(run, "system/cohort", {1: 2 + seed, 2: seed}) for seed, run in enumerate(runs, 1)]


def test_ticks_of_short_runs_are_whole_rounds(tail):
    (axes,) = cohort_figure(curves(*tail)).axes
    assert (axes.get_xticks() % 1 == 0).all()


def test_cohorts_are_means_with_bands_from_the_smallest_to_the_largest(tail):
    (axes,) = cohort_figure(curves(*tail)).axes
    (line,), (band,) = axes.lines, axes.collections
    assert line.get_xdata().tolist() == [1, 2]
    assert line.get_ydata().tolist() == [3.5, 1.5]
    edges = band.get_paths()[0].vertices
    assert {tuple(edge) for edge in edges.tolist()} == {(1, 3), (1, 4), (2, 1), (2, 2)}


def test_cohorts_are_shown_if_they_differ_by_more_than_doubling(write_run, log, doubling, tail):
    def run(name, sizes, **settings):
        return log(write_run(name, {"stored": [[0.5]]}, **settings), "system/cohort", sizes)

    all_clients = run("all", {1: 20, 2: 20})
    doubled = run("doubled", {1: 5, 2: 10}, callbacks=[doubling])
    assert not cohorts_differ(curves(all_clients, doubled))
    assert cohorts_differ(curves(all_clients, run("half", {1: 10, 2: 10}, method="Local")))
    assert cohorts_differ(curves(*tail))
    assert not cohorts_differ(curves(*tail, write_run("old", {"stored": [[0.5]]})))
