import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_lightning.errors import PflError
from pfl_lightning.server import Complete, ErdosRenyi, Exponential, MixingMatrix, Ring, Star, Torus

KITE = nx.Graph([(0, 1), (1, 2), (1, 3), (2, 3)])  # degrees 1, 3, 2, 2
IRREGULAR = [(Star(), 7), (ErdosRenyi(0.4), 11)]
graphs = st.builds(lambda clients, seed: ErdosRenyi(0.4).graph(clients, seed), st.integers(2, 12), st.integers(0, 99))


def links_of(graph, mixing="metropolis"):
    return MixingMatrix.between(graph, list(range(len(graph))), mixing)


def weighted(graph, weight):
    graph = graph.copy()
    nx.set_edge_attributes(graph, weight, "weight")
    return graph


def consensus_error(values):
    return np.square(values - values.mean()).mean()


@given(graph=graphs)
@settings(deadline=None)
def test_metropolis_weights_are_doubly_stochastic_and_positive_exactly_on_links(graph):
    matrix = links_of(graph).matrix
    assert matrix == pytest.approx(matrix.T)
    assert matrix.sum(0) == pytest.approx(1)
    assert matrix.sum(1) == pytest.approx(1)
    linked = nx.to_numpy_array(graph, range(len(graph))) > 0
    assert np.array_equal(matrix > 0, linked | np.eye(len(graph), dtype=bool))


@given(graph=graphs, seed=st.integers(0, 99))
@settings(deadline=None)
def test_mixing_keeps_the_mean_and_contracts_by_the_spectral_gap(graph, seed):
    links, before = links_of(graph), np.random.default_rng(seed).normal(size=len(graph))
    after = links.matrix @ before
    assert after.mean() == pytest.approx(before.mean())
    assert consensus_error(after) <= (1 - links.spectral_gap) ** 2 * consensus_error(before) + 1e-12


@given(graph=graphs, seed=st.integers(0, 99))
@settings(deadline=None)
def test_participants_mix_among_themselves_by_the_links_that_are_left(graph, seed):
    chosen = np.sort(np.random.default_rng(seed).permutation(len(graph))[: len(graph) // 2 + 1]).tolist()
    alone = nx.convert_node_labels_to_integers(graph.subgraph(chosen), ordering="sorted")
    matrix = MixingMatrix.between(graph, chosen, "metropolis").matrix
    assert matrix == pytest.approx(links_of(alone).matrix)
    assert matrix.sum(0) == pytest.approx(1)


@pytest.mark.parametrize("mixing", ["metropolis", "uniform"])
@pytest.mark.parametrize(("clients", "second"), [(4, 1 / 3), (5, 0.5393446629), (8, 0.8047378541), (128, 0.9991969708)])
def test_the_second_eigenvalue_of_a_ring_is_a_cosine(mixing, clients, second):
    # a circulant matrix: the largest |1/3 + 2/3 cos(2 pi m / N)| for m = 1 .. N - 1
    angles = 2 * np.pi * np.arange(1, clients) / clients
    assert np.abs(1 / 3 + 2 / 3 * np.cos(angles)).max() == pytest.approx(second, abs=1e-10)
    assert links_of(Ring().graph(clients, 0), mixing).spectral_gap == pytest.approx(1 - second, abs=1e-10)


def test_metropolis_weights_of_a_kite():
    # on a link 1 / (1 + the larger degree): quarters at client 1, a third between 2 and 3
    links = links_of(KITE)
    assert 12 * links.matrix == pytest.approx(np.array([[9, 3, 0, 0], [3, 3, 3, 3], [0, 3, 5, 4], [0, 3, 4, 5]]))
    assert links.matrix @ [4, 8, 0, 12] == pytest.approx([5, 6, 6, 7])
    assert np.linalg.eigvalsh(links.matrix) == pytest.approx([0, 1 / 12, 3 / 4, 1])
    assert links.spectral_gap == pytest.approx(1 / 4)
    assert links.degrees.tolist() == [1, 3, 2, 2]


def test_uniform_weights_of_a_kite_move_the_mean():
    links = links_of(KITE, "uniform")
    assert links.matrix @ [4, 8, 0, 12] == pytest.approx([6, 6, 20 / 3, 20 / 3])  # their mean is 19 / 3, not 6
    assert links.matrix.sum(1) == pytest.approx(1)
    assert links.matrix.sum(0) == pytest.approx([3 / 4, 17 / 12, 11 / 12, 11 / 12])


@pytest.mark.parametrize(("topology", "clients"), IRREGULAR)
def test_uniform_weights_are_not_doubly_stochastic_where_degrees_differ(topology, clients):
    links = links_of(topology.graph(clients, 0), "uniform")
    assert links.matrix.sum(1) == pytest.approx(1)
    assert np.abs(links.matrix.sum(0) - 1).max() > 0.1
    sizes = np.sort(np.abs(np.linalg.eigvals(links.matrix)))  # as of any matrix, without the symmetric form
    assert links.spectral_gap == pytest.approx(1 - sizes[-2])


@pytest.mark.parametrize(("topology", "clients"), [(Ring(), 9), (Torus(), 12), (Exponential(), 16), (Complete(), 5)])
def test_uniform_weights_are_those_of_metropolis_where_all_degrees_are_equal(topology, clients):
    graph = topology.graph(clients, 0)
    assert links_of(graph, "uniform").matrix == pytest.approx(links_of(graph).matrix)


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_a_complete_graph_agrees_at_once(clients):
    links = links_of(Complete().graph(clients, 0))
    assert links.matrix == pytest.approx(np.full((clients, clients), 1 / clients))
    assert links.spectral_gap == pytest.approx(1)


def test_participants_without_a_common_link_keep_what_they_have():
    links = MixingMatrix.between(Ring().graph(6, 0), [0, 2, 4], "metropolis")
    assert np.array_equal(links.matrix, np.eye(3))
    assert links.spectral_gap == pytest.approx(0, abs=1e-12)


def test_given_weights_are_those_of_the_links_and_the_rest_stays():
    links = links_of(nx.Graph([(0, 1, {"weight": 0.25}), (1, 2, {"weight": 0.5})]), "given")
    assert links.matrix.tolist() == [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]]
    assert links.degrees.tolist() == [1, 2, 1]


def test_two_clients_that_swap_their_models_never_agree():
    # the eigenvalues are 1 and -1
    assert links_of(nx.Graph([(0, 1, {"weight": 1.0})]), "given").spectral_gap == pytest.approx(0)


def test_weights_of_a_file_do_not_matter_to_the_other_mixings():
    for mixing in ("metropolis", "uniform"):
        assert np.array_equal(links_of(weighted(KITE, 7.0), mixing).matrix, links_of(KITE, mixing).matrix)


def test_given_weights_must_be_there():
    kite = KITE.copy()
    kite[0][1]["weight"] = 0.5
    with pytest.raises(
        PflError, match=r"^model\.mixing: given is not possible with links that have no weight; allowed: "
    ):
        links_of(kite, "given")


def test_given_weights_that_leave_less_than_nothing_are_one_line():
    # client 1 has three links
    with pytest.raises(PflError, match=r"^model.topology: weights of 1\.2 at client 1 are not .* allowed: up to 1 at "):
        links_of(weighted(KITE, 0.4), "given")
    assert links_of(weighted(KITE, 1 / 3), "given").matrix[1, 1] == pytest.approx(0)
