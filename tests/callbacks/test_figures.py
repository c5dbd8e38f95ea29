import re
from itertools import product

import numpy as np
import pytest
import torch
from fakes.methods import TINY, make_method, small
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, IMAGES, EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from pfl_lightning.callbacks import PercentileErrors, RunFigures, figures
from pfl_lightning.callbacks.board import Board
from pfl_lightning.callbacks.figures import charts_for
from pfl_lightning.methods import DPSGD, FedAvg, FedRep
from pfl_lightning.server import ErdosRenyi

pytestmark = pytest.mark.usefixtures("pictures")


def run(make, data, fit, folder, rounds=1, ckpt_path=None, logger=TensorBoardLogger, **options):
    """What TensorBoard has of a run with figures."""
    method = make_method(make, network=TINY, **{"eval_epochs": 0, **options})
    callbacks = [PercentileErrors((25, 50, 75)), RunFigures()]
    fit(method, data, rounds, callbacks=callbacks, logger=logger(folder, "", "board"), ckpt_path=ckpt_path)
    return EventAccumulator(str(folder / "board"), {IMAGES: 0, HISTOGRAMS: 0}).Reload()


@pytest.fixture
def drawn(monkeypatch):
    """Draws nothing, and has the arguments of what would be drawn, by the name of the function."""
    calls = {"scatter_figure": [], "topology_figure": [], "partition_card": []}
    for name, made in calls.items():
        monkeypatch.setattr(figures, name, lambda *args, made=made: (made.append(args), Figure((1, 1)))[1])
    return calls


def steps(board):
    return {tag: sorted(event.step for event in board.Images(tag)) for tag in board.Tags()["images"]}


class Diverging(FedAvg):
    """Has no finite loss after its first round."""

    def server_update(self, mean, batch):
        super().server_update({name: torch.full_like(tensor, torch.nan) for name, tensor in mean.items()}, batch)


@pytest.mark.slow
def test_clients_without_a_finite_loss_are_left_out_of_the_last_figures(ragged_data, fit, tmp_path):
    board = run(Diverging, ragged_data(eval_train=True), fit, tmp_path)
    by_samples = {"test/global/error_by_samples": [0, 1], "train/global/loss_by_samples": [0]}
    assert steps(board) == {"data/partition": [0], **by_samples}
    assert board.Images("test/global/error_by_samples")[0].width == 900
    assert [event.step for event in board.Histograms("train/global/loss")] == [0]


def test_a_resumed_run_draws_its_new_end_alone(ragged_data, fit, tmp_path, drawn):
    topology, data = ErdosRenyi(0.5, redraw_every=1), ragged_data()
    run(DPSGD, data, fit, tmp_path, 2, topology=topology)
    last = tmp_path / "board/checkpoints/last.ckpt"
    board = run(DPSGD, ragged_data(), fit, tmp_path, 4, ckpt_path=last, topology=topology)
    assert steps(board) == {"data/partition": [0], "topology": [0], "test/stored/error_by_samples": [0, 2, 4]}
    ((graph, counts, title),) = drawn["topology_figure"]
    assert set(graph.edges()) == set(topology.graph(6, data.seed, round_index=0).edges())
    assert np.array_equal(counts, data.class_counts()["train"])
    assert title.startswith(f"ErdosRenyi: 6 clients, {graph.number_of_edges()} links, spectral gap ")


def test_a_point_is_a_client_with_its_samples_and_its_score(drawn, ragged_data, fit, tmp_path):
    data = ragged_data(test_clients=0.5, eval_train=True)
    run(FedAvg, data, fit, tmp_path)
    last = drawn["scatter_figure"][-2:]
    by_split = {split: (samples, scores, score_kind.name) for samples, scores, score_kind, split in last}
    assert by_split["test"][0].tolist() == data.tables["test"].counts[3:].tolist()
    assert by_split["train"][0].tolist() == data.tables["train"].counts[:3].tolist()
    assert {split: drawing[2] for split, drawing in by_split.items()} == {"test": "accuracy", "train": "loss"}
    assert all(len(samples) == len(scores) for samples, scores, _ in by_split.values())


def test_the_ends_of_runs_have_histograms_and_there_are_charts_of_what_is_logged(drawn, ragged_data, fit, tmp_path):
    options = {"logger": Board, "eval_epochs": 1}
    run(FedRep, ragged_data(eval_train=True), fit, tmp_path, 2, **options)
    last = tmp_path / "board/checkpoints/last.ckpt"
    board = run(FedRep, ragged_data(eval_train=True), fit, tmp_path, 4, ckpt_path=last, **options)
    models = "finetuned", "stored"
    tags = {
        f"{split}/{model}/{name}" for (split, name), model in product((("test", "error"), ("train", "loss")), models)
    }
    assert set(board.Tags()["histograms"]) == tags
    for tag in tags:
        score_kind = tag.replace("error", "accuracy")
        means = {event.step: event.value for event in board.Scalars(f"{score_kind}/mean") if event.step % 2 == 0}
        found = {event.step: event.histogram_value for event in board.Histograms(tag)}
        expected = {step: 1 - mean if tag.endswith("error") else mean for step, mean in means.items()}
        assert {step: each.sum / each.num for step, each in found.items()} == pytest.approx(expected)
        assert {step: each.num for step, each in found.items()} == dict.fromkeys((0, 2, 4), 6)  # clients
        if tag.endswith("error"):  # twenty bins of 5 %, of which the outer empty ones are left out
            assert all(np.diff(each.bucket_limit) == pytest.approx(0.05) for each in found.values())

    (event,) = board.Tensors("custom_scalars__config__")
    (category,) = Layout.FromString(event.tensor_proto.string_val[0]).category
    charts, logged = {chart.title: chart for chart in category.chart}, set(board.Tags()["scalars"])
    for model in models:
        (series,) = charts.pop(f"{model}: median and quartiles").margin.series
        quartiles = [f"test_percentiles/{model}/accuracy/p{percentile}" for percentile in (25, 50, 75)]
        assert [series.lower, series.value, series.upper] == quartiles
        assert logged >= set(quartiles)
    shown = {title: {tag for tag in logged if re.search(*chart.multiline.tag, tag)} for title, chart in charts.items()}
    assert shown == {
        "test/accuracy of every method": {"test/accuracy"},
        "worst client of every model": {f"test/{model}/accuracy/worst" for model in models},
        "median of every model": {f"test_percentiles/{model}/accuracy/p50" for model in models},
    }


def test_without_quartiles_there_are_the_headline_and_the_worst(ragged_data, fit):
    method = small()
    fit(method, ragged_data(), 1)
    assert list(charts_for(method, has_quartiles=False)) == [
        "test/accuracy of every method",
        "worst client of every model",
    ]
