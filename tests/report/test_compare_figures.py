import numpy as np
import pytest

from pfl_lightning.report import clients_figure, curves_of, read_run, rounds_figure, time_figure


@pytest.fixture
def curves(write_run, doubling):
    """FedRep with two seeds, FedRep-SRPFL and Local with one; two clients."""
    return curves_of(
        [
            read_run(write_run("one", {"stored": [[0.0, 0.2], [0.4, 0.8]]}, compute=[0, 8])),
            read_run(write_run("two", {"stored": [[0.0, 0.2], [0.6, 1.0]]}, compute=[0, 12], seed=2)),
            read_run(write_run("three", {"stored": [[0.0, 0.2], [0.5, 0.5]]}, callbacks=[doubling])),
            read_run(write_run("four", {"stored": [[0.1, 0.1], [0.3, 0.5]]}, "Local")),
        ]
    )


def test_a_line_is_the_mean_of_scores_and_times_and_a_band_their_deviation(curves):
    panels = time_figure(curves, [0, 10]).axes
    assert [axes.get_title() for axes in panels] == ["communication time 0 s", "communication time 10 s"]
    for axes, last in zip(panels, (10, 110), strict=True):
        line = axes.lines[0]
        assert line.get_xdata().tolist() == [0, last]
        assert line.get_ydata() == pytest.approx([10, 70])
        # accuracies 60 and 80 % at the end: sample deviation sqrt(2 * 10^2); the one curve with several seeds
        (band,) = axes.collections
        edges = band.get_paths()[0].vertices
        assert edges[edges[:, 0] == last, 1].max() == pytest.approx(70 + np.sqrt(200))
        assert edges[edges[:, 0] == last, 1].min() == pytest.approx(70 - np.sqrt(200))


def test_a_method_has_one_colour_in_all_panels_and_its_doubled_variant_another_line(curves):
    figure = time_figure(curves, [0, 10, 100])
    looks = [
        [(line.get_label(), line.get_color(), line.get_linestyle()) for line in axes.lines] for axes in figure.axes
    ]
    assert looks[0] == looks[1] == looks[2]
    (fedrep, fedrep_color, dashed), (srpfl, srpfl_color, solid), (local, local_color, _) = looks[0]
    assert (fedrep, srpfl, local) == ("FedRep", "FedRep-SRPFL", "Local")
    assert fedrep_color == srpfl_color != local_color
    assert (dashed, solid) == ("--", "-")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedRep", "FedRep-SRPFL", "Local"]


def test_many_methods_can_be_told_apart(write_run):
    many = [read_run(write_run(f"run{n}", {"stored": [[0.5]]}, model={"lr": n})) for n in range(20)]
    (axes,) = rounds_figure(curves_of(many)).axes
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 20


def test_rounds_are_counted_as_in_the_run(curves):
    (axes,) = rounds_figure(curves).axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 10]] * 3


def test_histograms_are_of_each_clients_mean_error_over_the_seeds(curves):
    rows = clients_figure(curves).axes
    # FedRep: accuracies (.4, .8) and (.6, 1) give errors 50 and 10 %; all bins end with the largest error, 70 %
    bars = [bar for bar in rows[0].patches if bar.get_height()]
    assert [bar.get_height() for bar in bars] == [1, 1]
    for bar, error in zip(bars, (10, 50), strict=True):
        assert bar.get_x() <= error + 1e-9
        assert error - 1e-9 <= bar.get_x() + bar.get_width()
    assert rows[0].get_title(loc="left") == "FedRep: mean 30 (dashed), p90 46 (dotted)"
    assert [sum(bar.get_height() for bar in axes.patches) for axes in rows] == [2, 2, 2]


def test_losses_are_drawn_as_they_are(write_run):
    run = read_run(write_run("run", {"stored": [[3.0, 5.0]]}, quantity="loss"))
    (axes,) = clients_figure(curves_of([run])).axes
    assert axes.get_title(loc="left").startswith("FedRep: mean 4 ")
    assert axes.get_xlabel() == "final test loss of a client"
    (axes,) = rounds_figure(curves_of([run])).axes
    assert axes.get_ylabel() == "mean test loss"


def test_histograms_show_clients_without_any_error(write_run):
    (axes,) = clients_figure(curves_of([read_run(write_run("run", {"stored": [[1.0, 1.0]]}))])).axes
    (bar,) = [bar for bar in axes.patches if bar.get_height()]
    assert (bar.get_x(), bar.get_height()) == pytest.approx((0, 2))
    assert bar.get_width() > 0
