import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, IMAGES, EventAccumulator

from pfl_lightning.callbacks import ClientHistograms, ClientScatter, client_scatter
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.report import scatter_figure


@pytest.fixture
def drawn(monkeypatch):
    """What has been drawn, as the arguments of ``scatter_figure``."""
    calls = []

    def remember(*args):
        calls.append(args)
        return scatter_figure(*args)

    monkeypatch.setattr(client_scatter, "scatter_figure", remember)
    return calls


class Diverging(FedAvg):
    """Has no finite loss after its first round."""

    def server_update(self, mean, batch):
        super().server_update({name: torch.full_like(tensor, torch.nan) for name, tensor in mean.items()}, batch)


def run(method, data, fit, folder, rounds=5, ckpt_path=None):
    made = method(network=lambda shape, classes: MLP(shape, classes, hidden=(4,)), eval_epochs=0)
    logger = TensorBoardLogger(folder, "", "board")
    fit(made, data, rounds, callbacks=[ClientScatter(), ClientHistograms()], logger=logger, ckpt_path=ckpt_path)
    return EventAccumulator(str(folder / "board"), {IMAGES: 0, HISTOGRAMS: 0}).Reload()


def steps(board):
    return {tag: sorted(event.step for event in board.Images(tag)) for tag in board.Tags()["images"]}


def test_the_first_and_the_last_evaluation_of_a_run_are_drawn(ragged_data, fit, tmp_path):
    board = run(FedAvg, ragged_data(eval_train=True), fit, tmp_path)
    assert steps(board) == {"test/global/error_by_samples": [0, 5], "train/global/loss_by_samples": [0, 5]}
    assert board.Images("test/global/error_by_samples")[0].width == 900


def test_a_resumed_run_draws_its_new_end_alone(ragged_data, fit, tmp_path):
    run(FedAvg, ragged_data(), fit, tmp_path, rounds=2)
    board = run(FedAvg, ragged_data(), fit, tmp_path, rounds=4, ckpt_path=tmp_path / "board/checkpoints/last.ckpt")
    assert steps(board) == {"test/global/error_by_samples": [0, 2, 4]}


def test_a_point_is_a_client_with_its_samples_and_its_score(drawn, ragged_data, fit, tmp_path):
    data = ragged_data(test_clients=0.5, eval_train=True)
    run(FedAvg, data, fit, tmp_path, rounds=1)
    by_split = {split: (samples, scores, quantity.name) for samples, scores, quantity, split in drawn[-2:]}
    assert by_split["test"][0].tolist() == data.tables["test"].counts[3:].tolist()
    assert by_split["train"][0].tolist() == data.tables["train"].counts[:3].tolist()
    assert {split: drawing[2] for split, drawing in by_split.items()} == {"test": "accuracy", "train": "loss"}
    assert all(len(samples) == len(scores) for samples, scores, _ in by_split.values())


def test_clients_without_a_finite_loss_are_left_out(ragged_data, fit, tmp_path):
    board = run(Diverging, ragged_data(eval_train=True), fit, tmp_path, rounds=1)
    assert steps(board) == {"test/global/error_by_samples": [0, 1], "train/global/loss_by_samples": [0]}
    assert [event.step for event in board.Histograms("train/global/loss")] == [0]
