"""Clients whose losses are parabolas, for rules with a closed form."""

from functools import partial

import torch

from pfl_lightning.data import FederatedDataModule, NaturalUsers
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import Numbers
from pfl_lightning.models import LogisticRegression
from pfl_lightning.tasks import Regression

network = partial(LogisticRegression, bias=False)


class Quadratics(FederatedDataModule):
    """Regressions whose losses are ``curvature / 2 * |w - centre|^2``, one centre per client, and perhaps a curvature.

    One sample for each of the d dimensions: x is sqrt(d * curvature) times a unit vector, and y is w x at the centre.
    With ``noise`` there are two, at the centre plus and minus the noise, and losses are ``d * curvature / 2 * noise^2``
    larger.
    """

    task = Regression().sized(1)
    usual_partition = NaturalUsers

    def __init__(self, centres, curvature=1.0, noise=0.0, **kwargs):
        super().__init__(num_clients=len(centres), val_fraction=0.0, **kwargs)
        self.centres = torch.tensor(centres, dtype=torch.get_default_dtype())
        self.input_shape = (self.centres.shape[1],)
        self.shifts = torch.tensor([noise, -noise] if noise else [0.0])[:, None]
        self.scales = (self.centres.shape[1] * torch.as_tensor(curvature).to(self.centres)).sqrt().expand(len(centres))

    def load(self):
        clients, dimensions = self.centres.shape
        scales = self.scales.repeat_interleave(dimensions * len(self.shifts))
        inputs = scales[:, None] * torch.eye(dimensions).repeat(clients * len(self.shifts), 1)
        targets = scales * (self.centres[:, None] + self.shifts).flatten()
        data = LabelledData(inputs, targets, torch.arange(clients).repeat_interleave(dimensions * len(self.shifts)))
        return data, data

    def transform(self):
        return Numbers()


def built_at(method, data, start):
    """A method with a linear model, built for the data, that starts from these weights."""
    data.setup()
    method.build(data.input_shape, data.task, data.num_clients, data.seed)
    with torch.no_grad():
        method.network.fc.weight.copy_(torch.tensor([start]))
    return method


def point(method):
    """The weights of the shared model."""
    return method.network.fc.weight.detach()[0].tolist()
