from functools import partial

import pytest
import torch
from fakes.loops import descended, participants
from fakes.methods import assert_weighted_mean, built, distance, tensors
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.methods import FedAvg, FedLC
from pfl_lightning.tasks import Classification

pytestmark = pytest.mark.usefixtures("float64")


def test_a_class_is_shifted_by_the_fourth_root_of_its_samples():
    method = FedLC(strength=1.0)
    method.task = Classification().sized(3)
    outputs, shift = torch.zeros(1, 3), torch.tensor([16.0, 1.0, 81.0]) ** -0.25
    torch.testing.assert_close(shift, torch.tensor([0.5, 1.0, 1 / 3]))
    losses = method.shifted_losses(outputs, outputs, torch.tensor([1]), {"shift": shift})
    torch.testing.assert_close(losses, F.cross_entropy(torch.tensor([[-0.5, -1.0, -1 / 3]]), torch.tensor([1]))[None])
    single = method.shifted_losses(outputs[:, :1], outputs, torch.tensor([1]), {"shift": shift[:2]})
    torch.testing.assert_close(single, F.cross_entropy(torch.tensor([[-0.5, -1.0]]), torch.tensor([1]))[None])


def test_a_round_is_a_plain_loop_over_shifted_outputs(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    data.setup()
    method = built(partial(FedLC, strength=0.7), data, weight_decay=0.0)
    start, counts = tensors(method.network), data.class_counts()["train"]
    assert (counts == 0).any(), "somebody lacks a class"
    fit(method, data, 1, bare=True)

    def plainly(client, own):
        shift = torch.tensor([100.0 if n == 0 else n**-0.25 for n in counts[client].tolist()]) * 0.7

        def loss(model, inputs, targets):
            return F.cross_entropy(functional_call(method.network, model, inputs) - shift, targets)

        return descended(start, loss, own, (1, "train", 0, "all"))

    clients = [plainly(client, own) for client, own in participants(data, 0)]
    assert_weighted_mean(method, start, clients, data.make_round(0).examples.counts)


def test_without_a_shift_it_is_fedavg(train):
    assert distance(train(partial(FedLC, strength=0.0), 2), train(FedAvg, 2)) < 1e-12
