import networkx as nx
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import to_hex, to_rgba

from pfl_lightning.report import neighbours_figure, topology_figure
from pfl_lightning.report.topology import NO_SAMPLES, circle, class_colors, places_of, radius_of

KITE = nx.Graph([(0, 1), (1, 2), (1, 3), (2, 3)])
COUNTS = np.array([[6, 2, 0], [0, 5, 0], [0, 0, 0], [1, 1, 2]])


def drawn(figure, kind):
    return [collection for collection in figure.axes[0].collections if isinstance(collection, kind)]


def span(path):
    """The angle that a slice of a pie takes, in degrees, from the way around its arc."""
    corners = path.vertices[:-1]  # the last one closes the path
    center = corners[-1] if len(corners) > 2 else corners.mean(0)
    angles = np.unwrap(np.arctan2(*(corners[:-1] - center).T[::-1]))
    return np.degrees(abs(angles[-1] - angles[0]))


def test_every_client_is_a_pie_of_its_classes():
    pies = drawn(topology_figure(KITE, COUNTS, "Kite"), PatchCollection)[0]
    # client 0 has two slices, client 1 a whole pie, client 2 nothing, client 3 three slices
    red, green, blue = class_colors(3)
    faces = [to_hex(color) for color in pies.get_facecolors()]
    assert faces == [red, green, green, NO_SAMPLES, red, green, blue]
    spans = [span(path) for path in pies.get_paths()]
    assert np.take(spans, [0, 1, 4, 5, 6]) == pytest.approx([270, 90, 90, 90, 180], abs=1)


def test_every_link_is_a_line_between_two_clients():
    (links,) = drawn(topology_figure(KITE, COUNTS, "Kite"), LineCollection)
    places = places_of(KITE)
    ends = {frozenset(map(tuple, segment.round(9))) for segment in links.get_segments()}
    assert ends == {frozenset(map(tuple, places[[i, j]].round(9))) for i, j in KITE.edges()}


def test_few_clients_are_numbered_and_classes_are_named():
    figure = topology_figure(KITE, COUNTS, "Kite")
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "1", "2", "3"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["0", "1", "2"]
    assert figure.axes[0].get_title() == "Kite"


def test_many_clients_are_dots_in_the_colour_of_their_largest_class():
    counts = np.tile([[1, 0, 3], [0, 0, 0]], (100, 1))
    ring = nx.cycle_graph(200)
    *_, dots = topology_figure(ring, counts, "Ring").axes[0].collections
    assert np.array_equal(dots.get_offsets(), places_of(ring))
    colors = [tuple(color) for color in dots.get_facecolors()]
    assert colors[:2] == [to_rgba(class_colors(3)[2]), to_rgba(NO_SAMPLES)]


@pytest.mark.parametrize("graph", [nx.cycle_graph(9), nx.complete_graph(7), nx.circulant_graph(16, [1, 2, 4, 8])])
def test_a_graph_that_can_turn_is_on_a_circle(graph):
    places = places_of(graph)
    assert np.linalg.norm(places, axis=1) == pytest.approx(1)
    assert places[0] == pytest.approx([0, 1]), "client 0 at the top"
    assert places[1][0] > 0, "clockwise"


@pytest.mark.parametrize("clients", [8, 64, 65, 128, 150])
def test_pies_on_a_circle_do_not_touch_and_can_be_seen(clients):
    places = circle(clients)
    apart = np.linalg.norm(places[:, None] - places, axis=2) + 9 * np.eye(clients)
    radius = radius_of(places)
    assert apart.min() >= 2 * 0.9 * radius
    assert radius >= 0.02 * np.ptp(places, axis=0).max()


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (2, 20), (128, 30), (600, 62)])
def test_any_number_of_clients_and_classes_can_be_drawn(clients, classes):
    counts = np.random.default_rng(0).multinomial(20, np.full(classes, 1 / classes), clients)
    figure = topology_figure(nx.path_graph(clients), counts, "Path")
    figure.draw_without_rendering()
    assert len(figure.axes) == 1 + (classes > 20), "a bar of colours in place of a legend"


def test_too_many_clients_are_counted_by_their_neighbours():
    axes = neighbours_figure(KITE, "Kite").axes[0]
    # client 0 has one neighbour, 2 and 3 have two, 1 has three
    assert [bar.get_height() for bar in axes.patches] == [1, 2, 1]
    assert [bar.get_x() + bar.get_width() / 2 for bar in axes.patches] == [1, 2, 3]
