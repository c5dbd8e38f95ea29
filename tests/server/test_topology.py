import os
from errno import EISDIR, ENOENT

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_lightning.errors import PflError
from pfl_lightning.server import Complete, ErdosRenyi, Exponential, GraphFile, Ring, Star, Torus

GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="w" for="edge" attr.name="weight" attr.type="{type}"/>
  <graph edgedefault="{direction}">
    <node id="0"/><node id="1"/><node id="2"/>
    <edge source="0" target="1"><data key="w">{weight}</data></edge><edge source="2" target="1"/>{more}
  </graph>
</graphml>"""


def graphml(kind="double", direction="undirected", weight="0.3", more=""):
    return GRAPHML.format(type=kind, direction=direction, weight=weight, more=more)


def links(graph):
    return {frozenset(link) for link in graph.edges()}


def degrees(graph):
    return [graph.degree(client) for client in range(len(graph))]


def from_file(tmp_path, text, name="graph.txt", clients=3):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return GraphFile(path).graph(clients, seed=0)


@given(
    topology=st.sampled_from([Ring(), Complete(), Star(), Torus(), Exponential(), ErdosRenyi(0.5)]),
    clients=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_every_graph_is_simple_and_connected_with_one_node_per_client(topology, clients, seed):
    if isinstance(topology, Torus) and clients > 1 and all(clients % divisor for divisor in range(2, clients)):
        with pytest.raises(PflError, match=rf"^model.topology: Torus .* {clients} clients, a prime number; allowed: "):
            topology.graph(clients, seed)
        return
    graph = topology.graph(clients, seed)
    assert set(graph) == set(range(clients))
    assert type(graph) is nx.Graph, "neither directed nor with double links"
    assert not nx.number_of_selfloops(graph)
    assert nx.is_connected(graph)


@pytest.mark.parametrize("clients", [4, 9, 128])
def test_on_a_ring_clients_have_those_before_and_after_them(clients):
    assert links(Ring().graph(clients, 0)) == {frozenset((i, (i + 1) % clients)) for i in range(clients)}


def test_a_ring_of_three_is_complete_and_one_of_two_has_a_single_link():
    assert (
        links(Ring().graph(3, 0)) == links(Complete().graph(3, 0)) == {frozenset(p) for p in [(0, 1), (1, 2), (0, 2)]}
    )
    assert links(Ring().graph(2, 0)) == {frozenset((0, 1))}
    assert links(Ring().graph(1, 0)) == set()


def test_the_star_has_its_centre_at_client_0():
    assert degrees(Star().graph(6, 0)) == [5, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("clients", "rows"), [(12, 3), (16, 4), (15, 3), (24, 4)])
def test_the_torus_is_the_squarest_grid_with_its_sides_joined(clients, rows):
    columns, expected = clients // rows, set()
    for client in range(clients):
        row, column = divmod(client, columns)
        expected.add(frozenset((client, (row + 1) % rows * columns + column)))
        expected.add(frozenset((client, row * columns + (column + 1) % columns)))
    assert links(Torus().graph(clients, 0)) == expected
    assert degrees(Torus().graph(clients, 0)) == [4] * clients


def test_a_torus_of_two_rows_joins_them_once():
    assert degrees(Torus().graph(4, 0)) == [2] * 4
    assert degrees(Torus().graph(10, 0)) == [3] * 10


def test_exponential_neighbours_are_powers_of_two_away():
    distances = {1, 2, 4, 8}  # of 16 clients; 8 away is the same client in both directions
    pairs = {frozenset((i, (i + distance) % 16)) for i in range(16) for distance in distances}
    assert links(Exponential().graph(16, 0)) == pairs
    assert degrees(Exponential().graph(16, 0)) == [7] * 16


def test_a_random_graph_follows_from_the_seed_alone_and_stays():
    topology = ErdosRenyi(0.3)
    graph = topology.graph(20, seed=1)
    assert topology.graph(20, seed=1, round_index=50) is graph
    assert links(ErdosRenyi(0.3).graph(20, seed=1)) == links(graph)
    assert links(ErdosRenyi(0.3).graph(20, seed=2)) != links(graph)


def test_a_random_graph_can_be_drawn_again_every_few_rounds():
    topology = ErdosRenyi(0.3, redraw_every=2)
    drawn = [topology.graph(20, 1, round_index) for round_index in range(6)]
    assert drawn[0] is drawn[1]
    assert len({frozenset(links(graph)) for graph in drawn}) == 3
    resumed = ErdosRenyi(0.3, redraw_every=2).graph(20, 1, round_index=4)
    assert links(resumed) == links(drawn[4]), "a graph does not depend on those before it"


@pytest.mark.parametrize("probability", [0.0, 1e-4])
def test_a_random_graph_that_is_never_connected_is_one_line(probability):
    with pytest.raises(PflError) as error:
        ErdosRenyi(probability).graph(20, seed=0)
    assert str(error.value) == (  # log(20) / 20 = 0.15
        f"model.topology.edge_probability: {probability} is not possible with 20 clients: such graphs are "
        "not connected; allowed: about 0.1 or more"
    )


def test_a_hopeless_probability_is_refused_without_drawing(monkeypatch):
    monkeypatch.setattr(nx, "gnp_random_graph", None)
    with pytest.raises(PflError, match=r"0\.003 is not possible with 1000 clients: .* about 0\.007 or more"):
        ErdosRenyi(0.003).graph(1000, seed=0)


@pytest.mark.parametrize("text", ["0 1\n2 1\n", "# a path\n2 1\n\n0   1 # the first link\n", "0 1\r\n2 1"])
def test_a_list_of_edges_is_read(text, tmp_path):
    graph = from_file(tmp_path, text)
    assert links(graph) == {frozenset((0, 1)), frozenset((1, 2))}
    assert not nx.get_edge_attributes(graph, "weight")


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16"])
def test_graphml_is_read_with_its_weights(encoding, tmp_path):
    graph = from_file(tmp_path, graphml().replace("UTF-8", encoding).encode(encoding), "graph.graphml")
    assert links(graph) == {frozenset((0, 1)), frozenset((1, 2))}
    assert nx.get_edge_attributes(graph, "weight") == {(0, 1): 0.3}


def test_what_networkx_writes_is_what_we_read(tmp_path):
    graph = nx.erdos_renyi_graph(12, 0.5, seed=3)
    nx.set_edge_attributes(graph, 0.05, "weight")
    for name, write in (("graph.graphml", nx.write_graphml), ("graph.edges", nx.write_weighted_edgelist)):
        write(graph, tmp_path / name)
        found = GraphFile(tmp_path / name).graph(12, 0)
        assert links(found) == links(graph)
        assert set(nx.get_edge_attributes(found, "weight").values()) == {0.05}


ALL_CLIENTS = "one node per client, numbered from 0 to 2"
TEXT = "GraphML (.graphml), or two ids on each line"


@pytest.mark.parametrize(
    ("name", "text", "what", "allowed"),
    [
        ("many.txt", "0 1\n1 2\n2 3", "4 nodes from 0 to 3", ALL_CLIENTS),
        ("empty.txt", "# nothing", "no nodes", ALL_CLIENTS),
        ("loop.txt", "0 1\n1 2\n2 2", "a link of client 2 to itself", "links between two clients"),
        ("nan.txt", "0 1 nan\n1 2 1", r"the weight nan of the link \(0, 1\)", "positive numbers"),
        ("words.txt", "a b\nb c", r"its text \(.*a,b to .*\)", TEXT),
        ("binary.txt", bytes(range(256)), r"its text \(.*utf-8.*\)", TEXT),
        ("page.graphml", "<html/>", r"its text \(.*graphml.*\)", TEXT),
        ("directed.graphml", graphml(direction="directed"), "a directed graph", "an undirected one"),
        ("text.graphml", graphml("string", weight="much"), r"the weight much of .*", "positive numbers"),
    ],
)
def test_a_bad_file_is_one_line(name, text, what, allowed, tmp_path):
    with pytest.raises(PflError) as error:
        from_file(tmp_path, text, name)
    assert "\n" not in str(error.value)
    error.match(rf"^model\.topology\.path: '.*{name}' is not possible: {what}; allowed: ")
    assert str(error.value).endswith(f"; allowed: {allowed}")


def test_a_graph_in_two_pieces_is_one_line(tmp_path):
    with pytest.raises(PflError, match="is not possible: a graph that is not connected; allowed: one with a path "):
        from_file(tmp_path, "0 1\n2 3\n", clients=4)


@pytest.mark.parametrize(("name", "code"), [("none.txt", ENOENT), ("none.graphml", ENOENT), ("", EISDIR)])
def test_a_path_without_a_file_is_one_line(name, code, tmp_path):
    with pytest.raises(PflError, match=f"is not possible: {os.strerror(code)}; allowed: a file that can be read$"):
        GraphFile(tmp_path / name).graph(3, seed=0)
