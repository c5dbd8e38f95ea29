from functools import partial

import numpy as np
import pytest
import torch
from fakes.methods import make_method
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

from pfl_lightning.callbacks import SparsityTracker, sparsity_tracker
from pfl_lightning.callbacks.sparsity_tracker import dense_bits, sparse_bits
from pfl_lightning.methods import Ditto, FedAvg, FedMac, FedRep, Sparsity
from pfl_lightning.metrics import ClientDensity
from pfl_lightning.models import MLP, VGG

pytestmark = pytest.mark.usefixtures("pictures")

NETWORKS = {
    "mlp": partial(MLP, hidden=(6,)),
    "vgg": partial(VGG, convolutions=(3, "M", 4, "M"), hidden=(6, 5), dropout=0.0, batch_norm=True),
}
LAYERS = {"fc1": ("fc1.weight", "fc1.bias"), "fc2": ("fc2.weight", "fc2.bias")}


def run(make, data, fit, folder="run", rounds=2, network="mlp", tracked=True, **options):
    method = make_method(make, network=NETWORKS[network], batch_size=4, lr=0.1)
    trackers = [SparsityTracker()] if tracked else []
    return method, fit(method, data, rounds, folder, callbacks=trackers, **options)


def logged(trainer):
    return {name: float(v) for name, v in trainer.callback_metrics.items() if name.startswith("density/")}


def share(tensors, threshold):
    """Share of the entries of some tensors above a threshold, by NumPy."""
    flat = np.abs(np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors]))
    return np.mean(flat > threshold)


@pytest.fixture
def drawn(monkeypatch):
    """Draws nothing, and has the arguments of the heat maps that would be drawn."""
    calls = []
    monkeypatch.setattr(sparsity_tracker, "density_figure", lambda *args: (calls.append(args), Figure((1, 1)))[1])
    return calls


@pytest.mark.parametrize("network", NETWORKS)
def test_the_global_density_is_that_of_the_servers_parameters(network, ragged_data, fit):
    method, trainer = run(partial(FedAvg, eval_epochs=0), ragged_data(), fit, network=network)
    expected = {tag: share(method.network.parameters(), float(tag)) for tag in ("1e-04", "1e-03", "1e-02")}
    assert logged(trainer) == pytest.approx({f"density/global/all/{tag}": v for tag, v in expected.items()})
    assert expected["1e-02"] < 0.95
    assert network == "mlp" or expected["1e-02"] != share(method.network.state_dict().values(), 0.01)


def test_personal_densities_are_means_over_the_clients(ragged_data, fit):
    sparsity = Sparsity(threshold=0.025)
    method, trainer = run(partial(Ditto, sparsity=sparsity), ragged_data(), fit)
    personal = [method.clients.stack(f"personal.{name}") for name, _ in method.network.named_parameters()]
    found = logged(trainer)
    assert {name.rpartition("/")[2] for name in found} == {"1e-04", "1e-03", "1e-02", "2.5e-02"}
    for tag in ("1e-02", "2.5e-02"):
        clients = [share([stack[client] for stack in personal], float(tag)) for client in range(6)]
        assert found[f"density/personal/all/{tag}"] == pytest.approx(np.mean(clients))
        assert found[f"density/personal/all/{tag}"] != found[f"density/global/all/{tag}"]


def test_a_model_that_is_shared_in_part_has_layers_of_both_kinds(ragged_data, fit, tmp_path):
    make = partial(FedRep, eval_epochs=0)
    method, _ = run(make, ragged_data(), fit, logger=TensorBoardLogger(tmp_path, "", "board"))
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    heads = [method.clients.stack(name) for name in LAYERS["fc2"]]
    expected = {
        "fc1": share([method.network.get_parameter(name) for name in LAYERS["fc1"]], 0.01),
        "fc2": np.mean([share([stack[client] for stack in heads], 0.01) for client in range(6)]),
    }
    for layer, value in expected.items():
        events = sorted(board.Scalars(f"density/stored/{layer}/1e-02"), key=lambda event: event.step)
        assert [event.step for event in events] == [0, 2]
        assert events[-1].value == pytest.approx(value)


def test_what_all_clients_share_is_measured_once(monkeypatch, ragged_data, fit):
    cohorts, measure = [], ClientDensity.measure
    monkeypatch.setattr(
        ClientDensity, "measure", lambda self, params: cohorts.append(len(params.own)) or measure(self, params)
    )
    run(partial(FedAvg, eval_epochs=1, chunk_size=1), ragged_data(), fit, rounds=1)
    # two evaluations: the global model, and the finetuned models of six clients in chunks of one
    assert sorted(cohorts) == [0] * 2 + [2] * 12


def test_a_tracked_run_trains_and_scores_as_an_untracked_one_and_leaves_no_metric(ragged_data, fit):
    make = partial(FedMac, sparsity=Sparsity(weight=1e-2, threshold=1e-2, prune=True))
    runs = [run(make, ragged_data(), fit, str(tracked), tracked=tracked) for tracked in (True, False)]
    for method, _ in runs:
        assert not len(method.evaluator.measures)
    torch.testing.assert_close(*(method.state_dict() for method, _ in runs), rtol=0, atol=0)
    tracked = ("density/", "bits/paper")
    scores = {name: v for name, v in runs[0][1].callback_metrics.items() if not name.startswith(tracked)}
    assert scores == runs[1][1].callback_metrics


@pytest.mark.slow
def test_the_heat_maps_of_a_resumed_run_are_those_of_an_uninterrupted_one(drawn, ragged_data, fit, tmp_path):
    make = partial(Ditto, sparsity=Sparsity(weight=0.05, threshold=0.02, prune=True))
    board = partial(TensorBoardLogger, tmp_path, "")
    run(make, ragged_data(), fit, "straight", rounds=6)
    straight = drawn[:]
    drawn.clear()
    run(make, ragged_data(), fit, "cut", rounds=2, logger=board("board"))
    drawn.clear()
    last = tmp_path / "board/checkpoints/last.ckpt"
    _, trainer = run(make, ragged_data(), fit, "cut", rounds=6, logger=board("board"), ckpt_path=last)
    assert [figure[0] for figure in drawn] == [[0, 2, 4, 6]] * 2
    assert [figure[1] for figure in drawn] == [["fc1", "fc2", "all"]] * 2
    for one, other in zip(straight, drawn, strict=True):
        assert np.array_equal(one[2], other[2])
        assert one[3] == other[3]
    for model, (_, _, densities, title) in zip(("personal", "global"), drawn, strict=True):
        assert title.startswith(f"Density of the {model} model (parameters above 0.02)")
        assert densities[-1, -1] == trainer.callback_metrics[f"density/{model}/all/2e-02"]
    images = EventAccumulator(str(tmp_path / "board"), {IMAGES: 0}).Reload()
    assert sorted(event.step for event in images.Images("density/global")) == [2, 6]


# Bits by the formula of FedMac's paper


def test_the_formula_gives_the_numbers_of_the_paper():
    parameters = 784 * 100 + 100 + 100 * 10 + 10  # of the network whose bits FedMac's Figure 6 shows
    half, lowest = parameters // 2, 39357  # densities of 50 and 49.5 %
    assert dense_bits(parameters) == 5_088_640
    assert sparse_bits(parameters, half) / dense_bits(parameters) == 0.5234375
    assert sparse_bits(parameters, lowest) == 2_638_511
    assert sparse_bits(parameters, parameters) - dense_bits(parameters) == parameters


def test_the_bits_of_a_link_are_those_of_all_rounds_also_after_a_resume(ragged_data, fit, tmp_path):
    def bits(trainer):
        return float(trainer.callback_metrics["bits/paper"])

    dense, trainer = run(FedAvg, ragged_data(), fit, "dense", rounds=3)
    size = sum(parameter.numel() for parameter in dense.network.parameters())
    assert bits(trainer) == 3 * 2 * dense_bits(size)

    pruned = partial(FedAvg, sparsity=Sparsity(prune=True, threshold=0.05))
    _, straight = run(pruned, ragged_data(), fit, "straight", rounds=3)
    run(pruned, ragged_data(), fit, "resumed", rounds=2)
    _, resumed = run(pruned, ragged_data(), fit, "resumed", 3, ckpt_path=tmp_path / "resumed/checkpoints/last.ckpt")
    assert bits(resumed) == bits(straight) < 3 * 2 * sparse_bits(size, size)
    one, _ = run(pruned, ragged_data(), fit, "one", rounds=1)
    ledger = one.accounting.ledger
    assert ledger.entries == 2 * size > ledger.values
