from functools import partial
from math import log, prod

import pytest
import torch
from fakes.loops import batches, participants
from fakes.methods import built, distance, row, tensors, weighted_mean
from torch import nn
from torch.nn import functional as F

from pfl_lightning.methods import FedKD
from pfl_lightning.models import MLP

pytestmark = pytest.mark.usefixtures("float64")

SMALL = partial(MLP, hidden=(4,))


def test_both_trust_each_other_as_much_as_both_are_right():
    """Two samples: labels cost 3 ln 2 - ln 3 and 2 ln 2 in the mean, and features are apart by 4 and 0."""
    outputs = torch.tensor([[log(3), 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    features = torch.tensor([[3.0, 1.0], [2.0, 2.0]])
    extras = {
        "amounts": torch.ones(2),
        "weights": torch.full((2,), 0.5),
        "heads.private.bridge.weight": torch.ones(1, 1),
    }
    losses = FedKD().paired_losses(outputs, features, torch.tensor([0, 0]), extras)
    own = torch.tensor([log(4 / 3) + log(2), 2 * log(2)])
    p, q = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    divergences = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
    torch.testing.assert_close(losses, own + torch.tensor([divergences + 4, 0.0]) / own.mean())


def test_a_round_is_that_of_a_plain_loop_with_teacher_student_and_bridge(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(FedKD, shared_network=SMALL), data, weight_decay=0.0)
    start = {**tensors(method.network), **row(method, 0)}
    fit(method, data, 1, bare=True)
    students, counts = [], []
    for client, own in participants(data, 0):
        layers = {
            "bodies.private.fc1": nn.Linear(prod(data.input_shape), 8),
            "bodies.private.fc2": nn.Linear(8, 5),
            "heads.private.head.fc3": nn.Linear(5, 3),
            "heads.private.bridge": nn.Linear(4, 5, bias=False),
            "bodies.shared.fc1": nn.Linear(prod(data.input_shape), 4),
            "heads.shared.fc2": nn.Linear(4, 3),
        }
        for name, layer in layers.items():
            layer.load_state_dict({kind: start[f"{name}.{kind}"] for kind in layer.state_dict()})
        first, second, head, bridge, body, student_head = layers.values()
        optimizer = torch.optim.SGD([p for layer in layers.values() for p in layer.parameters()], lr=0.1)
        for inputs, targets in batches(own, (1, "train", 0, "all"))[0]:
            teacher = second(first(inputs.flatten(1)).relu()).relu()
            student = body(inputs.flatten(1)).relu()
            t, s = head(teacher).log_softmax(1), student_head(student).log_softmax(1)
            labels = F.nll_loss(t, targets) + F.nll_loss(s, targets)
            kl = partial(F.kl_div, reduction="batchmean", log_target=True)
            distilled = kl(t, s.detach()) + kl(s, t.detach()) + F.mse_loss(teacher, bridge(student))
            optimizer.zero_grad()
            (labels + distilled / labels.detach()).backward()
            optimizer.step()
        trained = {
            f"{name}.{kind}": tensor for name, layer in layers.items() for kind, tensor in tensors(layer).items()
        }
        assert distance(row(method, client), trained) < 1e-12
        students.append({name: trained[name] for name in method.shared})
        counts.append(int(own.counts))
    assert distance(weighted_mean(students, torch.tensor(counts)), method.network) < 1e-12
    torch.testing.assert_close(method.client(client)(inputs), head(second(first(inputs.flatten(1)).relu()).relu()))
