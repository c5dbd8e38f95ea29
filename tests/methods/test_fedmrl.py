from functools import partial
from itertools import pairwise
from math import prod

import pytest
import torch
from fakes.loops import batches, participants
from fakes.methods import built, distance, row, tensors, weighted_mean
from torch import nn
from torch.nn import functional as F

from pfl_lightning.methods import FedMRL
from pfl_lightning.methods.families.paired import Side
from pfl_lightning.methods.fedmrl import NestedHeads
from pfl_lightning.models import MLP

pytestmark = pytest.mark.usefixtures("float64")


class Plain(nn.Module):
    """The models of a client in a round, written down plainly."""

    def __init__(self, inputs):
        super().__init__()
        self.bodies = nn.ModuleDict({"private": Hidden(inputs, 8, 5), "shared": Hidden(inputs, 4)})
        own = nn.ModuleDict(
            {"projection": nn.Linear(9, 5, bias=False), "head": nn.ModuleDict({"fc3": nn.Linear(5, 3)})}
        )
        self.heads = nn.ModuleDict({"private": own, "shared": nn.ModuleDict({"fc2": nn.Linear(4, 3)})})

    def forward(self, inputs):
        own = self.heads["private"]
        mixed = own["projection"](torch.cat([self.bodies["shared"](inputs), self.bodies["private"](inputs)], 1))
        return own["head"]["fc3"](mixed), self.heads["shared"]["fc2"](mixed[:, :4])


class Hidden(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        for number, (before, after) in enumerate(pairwise(widths), start=1):
            self.add_module(f"fc{number}", nn.Linear(before, after))

    def forward(self, inputs):
        hidden = inputs.flatten(1)
        for layer in self.children():
            hidden = layer(hidden).relu()
        return hidden


def test_the_shared_head_sees_the_first_of_the_mixed_features():
    sides = []
    for features in (2, 1):
        network = MLP((1,), 3, hidden=(features,))
        sides.append(Side(network, 1))
    heads = NestedHeads(*sides)
    with torch.no_grad():
        heads.private["projection"].weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    seen = []
    for head in (heads.private["head"], heads.shared):
        head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].tolist()))
    heads(torch.tensor([[1.0, 2.0, 3.0]]))  # the private features, and then the shared one
    assert seen == [[[3.0, 1.0]], [[3.0]]]


def test_a_round_is_that_of_a_plain_module(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(FedMRL, shared_network=partial(MLP, hidden=(4,))), data, weight_decay=0.0)
    start = {**tensors(method.network), **row(method, 0)}
    fit(method, data, 1, bare=True)
    uploads, counts = [], []
    for client, own in participants(data, 0):
        model = Plain(prod(data.input_shape))
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in batches(own, (1, "train", 0, "all"))[0]:
            loss = sum(F.cross_entropy(outputs, targets) for outputs in model(inputs))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        uploads.append(tensors(model))
        counts.append(int(own.counts))
        assert distance(row(method, client), uploads[-1]) < 1e-12
    mean = weighted_mean(uploads, torch.tensor(counts))
    shared = {name: mean[name] for name in method.shared}
    assert distance(shared, method.network) < 1e-12
    model.load_state_dict({**uploads[-1], **shared})
    torch.testing.assert_close(method.client(client)(inputs), model(inputs)[0], rtol=0, atol=1e-12)
