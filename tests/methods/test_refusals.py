"""Networks and data that a method cannot be built for."""

from functools import partial

import pytest
from fakes.methods import built
from fakes.quadratics import Quadratics
from torch import nn

from pfl_lightning import methods
from pfl_lightning.errors import PflError
from pfl_lightning.models import ConvNet, LinearNetwork, LogisticRegression

NO_BODY = {"network": LogisticRegression}
CONVOLUTIONAL_HEAD = {"network": partial(ConvNet, channels=(3, 4)), "head": 2}
NORMED_HEAD = {"network": lambda shape, classes: nn.Sequential(ConvNet(shape, classes), nn.BatchNorm1d(classes))}


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        *(
            (kind, NO_BODY, f"model.network: {kind.__name__} needs a body; LogisticRegression trains one layer")
            for kind in (methods.DePRL, methods.FedAS, methods.FedBABU, methods.FedRep)
        ),
        *(
            (kind, NO_BODY, "model.network: this head .* has no features; allowed: a body, and a head")
            for kind in (methods.FedCP, methods.FedDBE, methods.GPFL, methods.KNNPer, methods.MOON)
        ),
        (methods.FedCP, NORMED_HEAD, "model.head must begin with a linear layer, got 1.weight"),
        *(
            (kind, CONVOLUTIONAL_HEAD, "model.head must begin with a linear layer, got conv2.weight")
            for kind in (methods.FedDBE, methods.FedProto, methods.GPFL)
        ),
        *(
            (kind, {"head": 2}, "model.head must be one linear layer, got fc2, fc3$")
            for kind in (methods.FedCP, methods.FedRoD)
        ),
        (
            methods.FedRoD,
            {"network": LinearNetwork},
            "model.network: LinearNetwork is not possible with FedRoD; allowed: a linear last",
        ),
        (
            methods.FedRoD,
            {"network": partial(LogisticRegression, bias=False)},
            "model.network: LogisticRegression is not possible with FedRoD",
        ),
    ],
)
def test_a_network_without_what_the_rule_needs_is_one_line(kind, options, line, ragged_data):
    with pytest.raises(PflError, match=f"^{line}"):
        built(kind, ragged_data(), **options)


@pytest.mark.parametrize("kind", [methods.FedEM, methods.FedProto, methods.FedRoD, methods.GPFL, methods.KNNPer])
def test_a_regression_is_one_line_for_a_rule_about_classes(kind):
    line = f"^model: {kind.__name__} supports classification only, got a regression$"
    with pytest.raises(PflError, match=line):
        built(kind, Quadratics([[1.0, 2.0]]))
