import numpy as np
import pytest

from pfl_lightning.report import cosine_figure

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
