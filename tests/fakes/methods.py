"""Small methods, for tests that look at them without a trainer."""

from functools import partial
from typing import Any

from pfl_lightning.models import MLP


def built(make, data, hidden=(8, 5), **options: Any):
    """A method with a small network, built for a data set."""
    method = make(network=partial(MLP, hidden=hidden), **{"batch_size": 4, "lr": 0.1, **options})
    method.build(data.input_shape, data.num_classes, data.num_clients, data.seed)
    return method


def stepping(method):
    """The same method, whose server step works without a trainer."""
    optimizer = method.configure_optimizers()
    method.optimizers = lambda: optimizer
    return method
