"""Methods that start with the weights of a file: everything that they hold must begin with them, at every client."""

from functools import partial
from pathlib import Path

import pytest
import torch
from fakes.methods import make_method
from fakes.networks import Nested, Normed, Plain
from torch import nn

from pfl_lightning import Experiment, load_method
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Digits
from pfl_lightning.errors import PflError
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.methods import DePRL, Ditto, FedAvg, FedRep, FedRoD, HeurFedAMP
from pfl_lightning.models import MLP
from pfl_lightning.tasks import Classification

SHAPE, CLASSES, CLIENTS = (1, 16, 16), 3, 6
METHODS = {
    "DePRL": DePRL,
    "Ditto": Ditto,
    "FedAvg": FedAvg,
    "FedRoD": FedRoD,
    "HeurFedAMP": HeurFedAMP,
}


def state(network, classes=CLASSES, shape=SHAPE):
    """Tensors of a network that no seed of a method gives."""
    torch.manual_seed(123)
    return {name: tensor + 1 for name, tensor in network(shape, classes).state_dict().items()}


def started(make, content, ragged_data, **options):
    """A method that is built with what a file holds."""
    torch.save(content, "weights.pt")
    data = ragged_data()
    data.setup()
    method = make_method(make, pretrained="weights.pt", batch_size=4, **options)
    method.build_for(data)
    return method


def own(method, tensors=None):
    return method.network.module_with(tensors or method.network.state_dict()).state_dict()


def are_equal(one, other, names=None):
    return all(torch.equal(one[name], other[name]) for name in names or one)


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.mark.parametrize("network", [Plain, Normed, Nested, partial(MLP, hidden=(4,))])
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_every_model_starts_with_the_weights_of_the_file(make, network, ragged_data):
    saved = state(network)
    method = started(make, saved, ragged_data, network=network)
    assert are_equal(own(method), saved)
    shared, own_tensors = method.network.state_dict(), method.clients.gather(torch.arange(CLIENTS))
    for name, stack in own_tensors.items():  # personal heads of FedRoD are what clients add to the common one
        expected = shared[name.removeprefix("personal.").removeprefix("cloud.")] * (make is not FedRoD)
        assert torch.equal(stack, expected.expand_as(stack)), name
    assert bool(own_tensors) == (make is not FedAvg)
    assert "from 'weights.pt'" in method.pretrained_report
    assert "new" not in method.pretrained_report


@pytest.mark.parametrize(
    "wrap",
    [
        lambda saved: {f"module.{name}": tensor for name, tensor in saved.items()},
        lambda saved: {"state_dict": {f"model.{name}": tensor for name, tensor in saved.items()}, "epoch": 7},
        lambda saved: {"model": saved, "optimizer": {"state": {}}},
        lambda saved: {**saved, "another.weight": torch.zeros(2)},
        lambda saved: {name: tensor.half().float().double() for name, tensor in saved.items()},
    ],
    ids=["module", "lightning", "model", "more", "double"],
)
def test_files_of_other_programs_are_understood(wrap, ragged_data):
    saved = {name: tensor.half().float() for name, tensor in state(Plain).items()}
    assert are_equal(own(started(FedAvg, wrap(saved), ragged_data, network=Plain)), saved)


@pytest.mark.parametrize("make", [FedRep, Ditto])
def test_a_head_for_other_classes_starts_anew(make, ragged_data):
    saved = state(Plain, classes=7)
    method = started(make, saved, ragged_data, network=Plain)
    fresh = make_method(make, network=Plain)
    fresh.build(SHAPE, Classification().sized(CLASSES), CLIENTS, ragged_data().seed)
    assert are_equal(own(method), saved, ["fc1.weight", "fc1.bias"])
    assert are_equal(own(method), own(fresh), ["fc2.weight", "fc2.bias"])
    assert method.pretrained_report == (
        "model.pretrained: 2 of the 4 tensors of Plain are from 'weights.pt'; new: fc2.weight, fc2.bias"
    )


def test_the_file_beats_what_the_data_set_has(ragged_data, monkeypatch):
    saved = state(Plain)
    theirs = {"fc1.bias": torch.full((6,), -3.0), "fc2.bias": torch.full((CLASSES,), -3.0)}
    monkeypatch.setattr(ragged_data, "pretrained", lambda self: theirs)
    method = started(FedAvg, {name: saved[name] for name in ("fc1.weight", "fc1.bias")}, ragged_data, network=Plain)
    assert torch.equal(own(method)["fc1.bias"], saved["fc1.bias"])
    assert torch.equal(own(method)["fc2.bias"], theirs["fc2.bias"])


@pytest.mark.slow
def test_a_run_goes_on_and_is_evaluated_and_loaded_without_the_file():
    torch.save(state(Plain, 10, (1, 8, 8)), "weights.pt")
    method = DePRL(network=Plain, pretrained="weights.pt", eval_epochs=0)
    data = Digits(num_clients=4, val_fraction=0.0, max_samples=20)
    straight = Experiment(method, data, 2, folder="straight").fit()
    first = Experiment(method, data, 1).fit()
    Path("weights.pt").unlink()
    assert are_equal(first.method().state_dict(), load_method(first.folder / "checkpoints/last.ckpt").state_dict())
    assert len(first.test()) > 0
    resumed = Experiment(method, data, 2).fit(resume=True)
    assert are_equal(straight.method().state_dict(), resumed.method().state_dict())


@pytest.mark.parametrize("prune", [False, True])
def test_the_checkpoint_of_a_run_starts_another_one(prune, ragged_data, fit, tmp_path):
    method = FedAvg(network=Plain, local=LocalTraining(batch_size=4), sparsity=Sparsity(prune=prune, threshold=0.02))
    fit(method, ragged_data(), 1)
    content = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    other = started(Ditto, content, ragged_data, network=Plain)
    assert are_equal(own(method), own(other))


def test_a_method_that_trains_the_head_alone_keeps_the_body_of_the_file(ragged_data, fit):
    class HeadOnly(FedAvg):
        trains = "head"

    torch.save(saved := state(Plain), "weights.pt")
    method = HeadOnly(network=Plain, pretrained="weights.pt", local=LocalTraining(batch_size=4))
    fit(method, ragged_data(), 2)
    assert are_equal(own(method), saved, ["fc1.weight", "fc1.bias"])
    assert not torch.equal(own(method)["fc2.weight"], saved["fc2.weight"])


def test_weights_that_fit_no_layer_are_refused(ragged_data):
    with pytest.raises(
        PflError, match=r"^model\.pretrained: 'weights\.pt' has fc1\.bias of torch\.float32 \(9,\); allo"
    ):
        started(FedAvg, state(partial(Plain, hidden=9)), ragged_data, network=Plain)
    with pytest.raises(
        PflError, match=r"^model\.pretrained: 'weights\.pt' has nothing for Plain; allowed: a file with"
    ):
        started(FedAvg, nn.Linear(3, 2).state_dict(), ragged_data, network=Plain)
