import pytest

from pfl_lightning.report import curves_of, read_run
from pfl_lightning.report.client_figures import clients_figure, samples_figure


@pytest.fixture
def curves(write_run):
    """FedRep with two seeds, and Local with one; two clients."""
    return curves_of(
        [
            read_run(write_run("one", {"stored": [[0.0, 0.2], [0.4, 0.8]]})),
            read_run(write_run("two", {"stored": [[0.0, 0.2], [0.6, 1.0]]}, seed=2)),
            read_run(write_run("three", {"stored": [[0.1, 0.1], [0.3, 0.5]]}, "Local")),
        ]
    )


@pytest.fixture
def evaluated(write_run, evaluate):
    """Delta-FL with two seeds, and training losses of two other clients with 10 and 1000 samples."""
    losses = {1: [[3.0, 4.0], [1.0, 2.0]], 2: [[3.0, 4.0], [2.0, 4.0]]}
    runs = [write_run(str(seed), {"global": [[0.2, 0.2], [0.4, 0.8]]}, "DeltaFL", seed=seed) for seed in losses]
    for run, seed in zip(runs, losses, strict=True):
        evaluate(run, "train", losses[seed], samples=[10, 1000], first=2)
    return curves_of(list(map(read_run, runs)))


def test_histograms_are_of_each_clients_mean_error_over_the_seeds(curves):
    rows = clients_figure(curves).axes
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
    (axes,) = clients_figure(curves_of([read_run(write_run("loss", {"stored": [[3.0, 5.0]]}, score_name="loss"))])).axes
    assert axes.get_title(loc="left").startswith("FedRep: mean 4 ")
    assert axes.get_xlabel() == "final test loss of a client"
    (axes,) = clients_figure(curves_of([read_run(write_run("run", {"stored": [[1.0, 1.0]]}))])).axes
    (bar,) = [bar for bar in axes.patches if bar.get_height()]
    assert (bar.get_x(), bar.get_height()) == pytest.approx((0, 2))
    assert bar.get_width() > 0


def test_each_client_is_a_point_at_its_samples_and_its_mean_error(evaluated):
    test, train = samples_figure(evaluated).axes
    assert test.collections[0].get_offsets().tolist() == [[100, pytest.approx(60)], [100, pytest.approx(20)]]
    assert train.collections[0].get_offsets().tolist() == [[10, 1.5], [1000, 3]]
    assert (test.get_ylabel(), train.get_ylabel()) == ("test error (%)", "training loss")


def test_all_points_are_inside_the_panels_that_curves_share(curves):
    panels = samples_figure(curves).axes
    assert [axes.get_title() for axes in panels] == ["FedRep", "Local"]
    assert len({axes.get_ylim() for axes in panels}) == 1
    assert panels[0].get_ylim()[1] > 70  # Local's largest error
