import re

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, IMAGES, EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from pfl_lightning.callbacks import PercentileErrors, RunFigures
from pfl_lightning.callbacks.board import Board
from pfl_lightning.callbacks.figures import run_figures
from pfl_lightning.methods import DPSGD, FedAvg, FedRep
from pfl_lightning.models import MLP
from pfl_lightning.server import ErdosRenyi


def run(
    make, data, fit, folder, rounds=1, ckpt_path=None, percentiles=(25, 50, 75), logger=TensorBoardLogger, **options
):
    """What TensorBoard has of a run with figures."""
    method = make(network=lambda shape, classes: MLP(shape, classes, hidden=(4,)), **{"eval_epochs": 0, **options})
    callbacks = [PercentileErrors(percentiles), RunFigures()]
    fit(method, data, rounds, callbacks=callbacks, logger=logger(folder, "", "board"), ckpt_path=ckpt_path)
    return EventAccumulator(str(folder / "board"), {IMAGES: 0, HISTOGRAMS: 0}).Reload()


@pytest.fixture
def drawn(monkeypatch):
    """The arguments of what has been drawn, by the name of the function."""
    calls = {"scatter_figure": [], "topology_figure": []}
    for name, made in calls.items():
        draw = getattr(run_figures, name)
        monkeypatch.setattr(run_figures, name, lambda *args, draw=draw, made=made: (made.append(args), draw(*args))[1])
    return calls


def steps(board):
    return {tag: sorted(event.step for event in board.Images(tag)) for tag in board.Tags()["images"]}


class Diverging(FedAvg):
    """Has no finite loss after its first round."""

    def server_update(self, mean, batch):
        super().server_update({name: torch.full_like(tensor, torch.nan) for name, tensor in mean.items()}, batch)


def test_the_split_is_drawn_at_the_start_and_the_clients_at_the_first_and_the_last_evaluation(
    ragged_data, fit, tmp_path
):
    board = run(FedAvg, ragged_data(eval_train=True), fit, tmp_path, rounds=5)
    by_samples = {"test/global/error_by_samples": [0, 5], "train/global/loss_by_samples": [0, 5]}
    assert steps(board) == {"data/partition": [0], **by_samples}
    assert board.Images("test/global/error_by_samples")[0].width == 900


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
    by_split = {split: (samples, scores, quantity.name) for samples, scores, quantity, split in last}
    assert by_split["test"][0].tolist() == data.tables["test"].counts[3:].tolist()
    assert by_split["train"][0].tolist() == data.tables["train"].counts[:3].tolist()
    assert {split: drawing[2] for split, drawing in by_split.items()} == {"test": "accuracy", "train": "loss"}
    assert all(len(samples) == len(scores) for samples, scores, _ in by_split.values())


def test_clients_without_a_finite_loss_are_left_out(ragged_data, fit, tmp_path):
    board = run(Diverging, ragged_data(eval_train=True), fit, tmp_path)
    assert steps(board)["train/global/loss_by_samples"] == [0]
    assert [event.step for event in board.Histograms("train/global/loss")] == [0]


def test_the_first_and_the_last_evaluation_have_histograms_of_errors_and_of_training_losses(ragged_data, fit, tmp_path):
    run(FedRep, ragged_data(eval_train=True), fit, tmp_path, 2, eval_epochs=1)
    last = tmp_path / "board/checkpoints/last.ckpt"
    board = run(FedRep, ragged_data(eval_train=True), fit, tmp_path, 4, ckpt_path=last, eval_epochs=1)
    tags = {f"{name}/{model}" for name in ("test", "train") for model in ("finetuned", "stored")}
    assert {tag.rpartition("/")[0] for tag in board.Tags()["histograms"]} == tags
    for tag in board.Tags()["histograms"]:
        quantity = tag.replace("error", "accuracy")
        means = {event.step: event.value for event in board.Scalars(f"{quantity}/mean") if event.step % 2 == 0}
        found = {event.step: event.histogram_value for event in board.Histograms(tag)}
        expected = {step: 1 - mean if tag.endswith("error") else mean for step, mean in means.items()}
        assert {step: each.sum / each.num for step, each in found.items()} == pytest.approx(expected)
        assert {step: each.num for step, each in found.items()} == dict.fromkeys((0, 2, 4), 6)  # clients
        if tag.endswith("error"):  # twenty bins of 5 %, of which the outer empty ones are left out
            assert all(np.diff(each.bucket_limit) == pytest.approx(0.05) for each in found.values())


@pytest.fixture
def charts(ragged_data, fit, tmp_path):
    """Makes a run, and returns its charts by title and the tags of its scalars."""

    def make(**options):
        board = run(FedRep, ragged_data(), fit, tmp_path, logger=Board, eval_epochs=1, **options)
        (event,) = board.Tensors("custom_scalars__config__")
        (category,) = Layout.FromString(event.tensor_proto.string_val[0]).category
        return {chart.title: chart for chart in category.chart}, set(board.Tags()["scalars"])

    return make


def test_charts_show_tags_that_are_logged(charts):
    found, logged = charts()
    models = "finetuned", "stored"
    for model in models:
        (series,) = found.pop(f"{model}: median and quartiles").margin.series
        tags = [f"test_percentiles/{model}/accuracy/p{percentile}" for percentile in (25, 50, 75)]
        assert [series.lower, series.value, series.upper] == tags
        assert logged >= set(tags)
    shown = {title: {tag for tag in logged if re.search(*chart.multiline.tag, tag)} for title, chart in found.items()}
    assert shown == {
        "test/accuracy of every method": {"test/accuracy"},
        "worst client of every model": {f"test/{model}/accuracy/worst" for model in models},
        "median of every model": {f"test_percentiles/{model}/accuracy/p50" for model in models},
    }


def test_without_quartiles_there_are_the_headline_and_the_worst(charts):
    found, _ = charts(percentiles=(10, 50))
    assert list(found) == ["test/accuracy of every method", "worst client of every model"]
