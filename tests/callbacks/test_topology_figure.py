import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.callbacks import TopologyFigure, topology_figure
from pfl_lightning.methods import DPSGD, FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.report import topology_figure as draw
from pfl_lightning.server import ErdosRenyi


@pytest.fixture
def drawn(monkeypatch):
    """What has been drawn, as the arguments of ``report.topology_figure``."""
    calls = []

    def remember(*args):
        calls.append(args)
        return draw(*args)

    monkeypatch.setattr(topology_figure, "topology_figure", remember)
    return calls


def run(make, data, fit, folder, rounds, ckpt_path=None, **options):
    method = make(network=lambda shape, classes: MLP(shape, classes, hidden=(4,)), eval_epochs=0, **options)
    logger = TensorBoardLogger(folder, "", "board")
    fit(method, data, rounds, callbacks=[TopologyFigure()], logger=logger, ckpt_path=ckpt_path)
    return EventAccumulator(str(folder / "board")).Reload()


def test_the_graph_of_the_first_round_is_shown_once(ragged_data, fit, tmp_path, drawn):
    topology, data = ErdosRenyi(0.5, redraw_every=1), ragged_data()
    board = run(DPSGD, data, fit, tmp_path, 2, topology=topology)
    last = next(tmp_path.rglob("last.ckpt"))
    run(DPSGD, ragged_data(), fit, tmp_path, 3, ckpt_path=last, topology=topology)
    ((graph, counts, title),) = drawn
    assert set(graph.edges()) == set(topology.graph(6, data.seed, round_index=0).edges())
    assert np.array_equal(counts, data.class_counts()["train"])
    links = graph.number_of_edges()
    assert title.startswith(f"ErdosRenyi: 6 clients, {links} links, spectral gap ")
    (image,) = board.Images("topology")
    assert (image.step, image.width > 1000) == (0, True)


def test_a_method_with_a_server_has_no_graph(ragged_data, fit, tmp_path, drawn):
    board = run(FedAvg, ragged_data(), fit, tmp_path, 1)
    assert not drawn
    assert not board.Tags()["images"]
