"""A loss of one's own, held against the standard one and against plain torch."""

from functools import partial

import pytest
import torch
from fakes.cohorts import examples_of
from fakes.loops import samples_of
from fakes.methods import built, distance
from torch import nn
from torch.nn import functional as F

from pfl_lightning import load_method
from pfl_lightning.client import Engine, LocalTraining, Phase
from pfl_lightning.data import LinearRepresentation
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DeltaFL, DisPFL, FedAvg, FedMac, FedRep, FedRoD, Method, PerFedAvg
from pfl_lightning.models import MLP, ConvNet, LinearNetwork
from pfl_lightning.tasks import Classification, Regression, try_loss
from pfl_lightning.tasks.own_loss import loss_of_samples
from pfl_lightning.tree import Params

pytestmark = pytest.mark.usefixtures("float64")


usual = Classification().usual_losses


def focal(outputs, targets):
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return (1 - losses.neg().exp()) ** 2 * losses


METHODS = {
    "DeltaFL": partial(DeltaFL, conformity=0.6),
    "DisPFL": partial(DisPFL, drop_rounds=4),
    "FedAvg": FedAvg,
    "FedMac": partial(FedMac, correlation=0.1, copy_lr=3.0),
    "FedRep": partial(FedRep, head_epochs=2),
    "FedRoD": FedRoD,
    "PerFedAvg": PerFedAvg,
}


def reported(method):
    return float(method.trainer.callback_metrics["train/loss"])


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_the_standard_loss_given_as_ones_own_is_the_standard_loss(make, train):
    standard, same = (train(make, 2, task=Classification(loss)) for loss in (None, usual))
    assert distance(standard, same) < 1e-12
    assert reported(standard) == pytest.approx(reported(same), rel=1e-12)


def test_a_loss_with_the_same_slope_everywhere_trains_like_any_other(train):
    one, other = (
        train(FedAvg, 1, backend=backend, task=Classification(sum_of_outputs)) for backend in ("sequential", "batched")
    )
    assert distance(one, other) < 1e-12


def sum_of_outputs(outputs, targets):
    return outputs.sum(1)


@pytest.mark.parametrize(
    "network", [partial(MLP, hidden=(8, 5)), partial(ConvNet, channels=(3, 4))], ids=["mlp", "conv"]
)
def test_label_smoothing_is_that_of_a_plain_loop(network):
    examples, loss = examples_of(counts=(12, 12)), nn.CrossEntropyLoss(label_smoothing=0.2)
    model = network((1, 16, 16), 3)
    params = Params({name: tensor.clone() for name, tensor in model.state_dict().items()}, {})
    phase = Phase(frozenset(model.state_dict()), epochs=3, batch_size=12, lr=0.1, momentum=0.5)
    trained = {}
    for backend in ("sequential", "batched"):
        engine = Engine(model, backend, task=Classification(loss))
        trained[backend], losses = engine.train(examples, params, phase, (1, "train", 0, "all"))
    inputs, targets = examples.gather(examples.positions), examples.targets(examples.positions)
    for client in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        model.load_state_dict(params.shared)
        for _ in range(3):
            optimizer.zero_grad()
            value = loss(model(inputs[client]), targets[client])
            value.backward()
            optimizer.step()
        assert losses[client] == pytest.approx(value.item(), rel=1e-10)
        assert all(distance(model, found.client(client)) < 1e-12 for found in trained.values())


def test_the_loss_in_scores_is_ones_own_without_the_padding():
    examples, model = examples_of(), MLP((1, 16, 16), 3, hidden=(4,))
    params = Params(model.state_dict(), {})
    found = Engine(model, task=Classification(focal)).sums(examples, params)["loss"]
    for client in range(len(examples)):
        inputs, targets = samples_of(examples.rows(client, client + 1))
        assert found[client].item() == pytest.approx(focal(model(inputs), targets).sum().item(), rel=1e-12)


class Smoothed(Method):
    """Standard loss with a reward for doubt."""

    def sample_losses(self, outputs, targets):
        doubt = outputs.softmax(-1).square().sum(-1)
        return super().sample_losses(outputs, targets) + 0.5 * doubt


def test_a_method_may_have_a_loss_which_the_users_own_goes_into(train):
    def whole(outputs, targets):
        return focal(outputs, targets) + 0.5 * outputs.softmax(-1).square().sum(-1)

    assert (
        distance(train(Smoothed, 2, task=Classification(focal)), train(FedAvg, 2, task=Classification(whole))) < 1e-12
    )


def test_weights_of_classes_travel_with_the_checkpoint_but_the_loss_must_be_given_again(ragged_data, fit, tmp_path):
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    method = built(FedAvg, ragged_data(), task=Classification(loss))
    fit(method, ragged_data(), 1)
    path = tmp_path / "run/checkpoints/last.ckpt"
    task = Classification(nn.CrossEntropyLoss(weight=torch.ones(3)))
    loaded = load_method(path, network=method.make_network, task=task)
    assert distance(method, loaded) == 0
    with pytest.raises(PflError, match=r"^model\.task\.loss is from Python and not in the checkpoint"):
        load_method(path, network=method.make_network)
    assert loss.reduction == "mean", "the user's object is the user's"


def test_a_loss_of_numbers_takes_a_regression(fit):
    loss = nn.HuberLoss()
    method = FedAvg(network=partial(LinearNetwork, rank=2), task=Regression(loss), local=LocalTraining(lr=0.05))
    fit(method, LinearRepresentation(num_clients=4, samples=8), 1, bare=True)
    outputs, targets = torch.randn(5, 1), torch.randn(5)
    expected = type(loss)(reduction="none")(outputs[:, 0], targets)
    assert torch.equal(method.sample_losses(outputs, targets), expected)


def test_a_logistic_loss_of_torch_takes_two_classes():
    outputs, labels = torch.randn(6, 1), torch.tensor([0, 1, 1, 0, 1, 0])
    assert torch.allclose(loss_of_samples(nn.BCEWithLogitsLoss())(outputs, labels), usual(outputs, labels))


class Learned(nn.Module):
    """A loss with a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (Learned(), "Learned with parameters (scale) is not possible, nothing would train them; allowed: a"),
        ("mse", "'mse' is not possible; allowed: a module or a function"),
        (nn.CrossEntropyLoss(reduction="sum"), "sum is not possible; allowed: none, mean"),
        (nn.MSELoss(), "mine of outputs and targets (4, 3) (torch.float64) and (4,) (torch.int64) fails: The size of"),
        (F.cross_entropy, "mine returns the shape () for 4 samples; allowed: one finite loss for each sample"),
        (lambda outputs, targets: [1.0], "mine returns a list; allowed: one finite loss"),
        (lambda outputs, targets: (outputs / outputs).sum(1), "mine returns nan for outputs of zero"),
        (lambda outputs, targets: (outputs.argmax(1) != targets).double(), "mine returns losses without a gradient"),
        (lambda outputs, targets: focal(outputs / (1 + outputs.std()), targets), "mine returns losses that depend"),
        (lambda outputs: outputs, "mine of outputs and targets (4, 3) (torch.float64) and (4,) (torch.int64) fails: "),
    ],
)  # fmt: skip
def test_what_is_no_loss_of_samples_is_refused_in_a_line(loss, line):
    outputs, targets = torch.zeros(4, 3), torch.tensor([0, 2, 1, 1])
    with pytest.raises(PflError) as refused:
        try_loss(loss_of_samples(loss), "mine", outputs, targets)
    assert line in str(refused.value)
    assert str(refused.value).startswith("model.task.loss")


def test_a_loss_may_choose_by_its_values(train):
    def branching(outputs, targets):
        losses = usual(outputs, targets)
        return losses if bool((losses >= 0).all()) else 2 * losses

    assert distance(train(FedAvg, 1, task=Classification(branching), backend="batched"), train(FedAvg, 1)) < 1e-12
