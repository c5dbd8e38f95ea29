import numpy as np
import pytest

from pfl_lightning.report import cosine_figure, density_figure

COUNTS = np.array([[1, 9], [5, 5], [0, 3], [8, 1]])  # by largest class: clients 1 and 3, then 0 and 2
COSINES = np.array([[1, 0.1, 0.2, 0.3], [0.1, 1, 0.4, 0.5], [0.2, 0.4, 1, 0.6], [0.3, 0.5, 0.6, 1]])


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def test_every_map_is_in_the_order_of_the_largest_classes():
    order = [1, 3, 0, 2]
    data, heads = panels(cosine_figure({"data": COSINES, "heads": 1 - COSINES / 2}, COUNTS))
    assert np.array_equal(data.images[0].get_array(), COSINES[order][:, order])
    assert np.array_equal(heads.images[0].get_array(), (1 - COSINES / 2)[order][:, order])
    assert [label.get_text() for label in data.get_yticklabels()] == ["1", "3", "0", "2"]


@pytest.mark.parametrize(("lowest", "scale"), [(-0.5, -0.5), (0.3, 0.3), (0.9999, 0.9)])
def test_colours_go_from_the_smallest_cosine_to_one_unless_all_are_nearly_equal(lowest, scale):
    cosines = np.array([[1, lowest], [lowest, 1]])
    (axes,) = panels(cosine_figure({"bodies": cosines}, COUNTS[:2]))
    assert axes.images[0].get_clim() == (scale, 1)
    assert axes.get_title() == f"bodies, smallest {lowest}"


def test_many_clients_have_no_numbers():
    (axes,) = panels(cosine_figure({"data": np.eye(128)}, np.ones((128, 3))))
    assert not len(axes.get_yticks())


def test_the_heat_map_has_a_column_per_evaluation_and_a_row_per_layer():
    shares = np.array([[0.9, 0.5, 0.6], [0.8, 0.4, 0.5], [0.7, 0.25, 0.4]])
    figure = density_figure([0, 10, 13], ["conv", "fc", "all"], shares, "Toy")
    axes, bar = figure.axes
    (mesh,) = axes.collections
    assert np.array_equal(mesh.get_array(), shares.T)
    assert mesh.get_clim() == (0, 1)
    # columns end halfway between evaluations, the outer ones as far beyond
    assert mesh.get_coordinates()[0, :, 0].tolist() == pytest.approx([-5, 5, 11.5, 14.5])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["conv: 70.0%", "fc: 25.0%", "all: 40.0%"]
    assert axes.get_ylim() == (3, 0), "the first layer is at the top"
    assert bar.get_ylabel() == "density"


def test_a_single_evaluation_and_hundreds_of_layers_can_be_drawn():
    axes = density_figure([0, 1], ["fc"], np.ones((2, 1)), "Short").axes[0]
    assert (axes.get_xticks() % 1 == 0).all(), "whole rounds"
    figure = density_figure([7], [f"layer{number}" for number in range(300)], np.full((1, 300), 0.5), "Deep")
    figure.draw_without_rendering()
    assert len(figure.axes[0].get_yticks()) == 60
    assert figure.get_figheight() < 20
