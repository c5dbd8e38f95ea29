"""Small methods, for tests that look at them without a trainer."""

from dataclasses import fields, replace
from functools import partial
from inspect import signature
from typing import Any

import plain_loop
import torch
from torch import nn

from pfl_lightning.client import LocalTraining
from pfl_lightning.contract.subject import distance, tensors  # noqa: F401  # for the tests of methods
from pfl_lightning.methods import ClientLoop, FedAvg
from pfl_lightning.models import MLP, Network
from pfl_lightning.tree import Params

TINY = partial(MLP, hidden=(4,))
small = partial(FedAvg, network=TINY)
LOCAL = {field.name for field in fields(LocalTraining)}


class PlainSGD(ClientLoop):
    """FedAvg's local training as everyone writes it."""

    def client_update(self, model, loader):
        decay = [(parameter, self.local_sgd.decay_of(parameter.ndim)) for parameter in model.parameters()]
        groups = [{"params": [parameter], "weight_decay": weight_decay} for parameter, weight_decay in decay]
        optimizer = torch.optim.SGD(groups, lr=self.rate(self.local.lr))
        for _ in range(self.local.epochs):
            losses = []
            for inputs, targets in loader:
                loss = self.sample_losses(model(inputs), targets).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses += [loss.item()] * len(inputs)
        return sum(losses) / len(losses)


class PersonalSGD(PlainSGD):
    """The same with heads that clients keep."""

    keeps = "head"


def make_method(make, **options: Any):
    """A method, whose numbers of local training may stand beside its other options."""
    arguments = ()
    while isinstance(make, partial):
        options = {**make.keywords, **options}
        arguments = (*make.args, *arguments)
        make = make.func
    parameters = signature(make).parameters
    names = LOCAL & options.keys() - parameters.keys() if "kind" not in parameters else set()
    numbers = {name: options.pop(name) for name in sorted(names)}
    if numbers:
        options["local"] = replace(options.get("local", LocalTraining()), **numbers)
    return make(*arguments, **options)


def built(make, data, hidden=(8, 5), **options: Any):
    """A method with a small network, built for a data set."""
    method = make_method(make, **{"network": partial(MLP, hidden=hidden), "batch_size": 4, "lr": 0.1, **options})
    method.build(data.input_shape, data.task, data.num_clients, data.seed, input_kind=data.input_kind)
    return method


def rows(method, prefix=""):
    """Copies of the rows of all clients whose names have a prefix, by their names without it."""
    names = [name for name in method.clients.names if name.startswith(prefix)]
    return {name.removeprefix(prefix): method.clients.stack(name).clone() for name in names}


def row(method, client, prefix=""):
    """The rows of one client."""
    return {name: stack[client] for name, stack in rows(method, prefix).items()}


def models_of(method):
    """Copies of all models of a method with several."""
    server = Params(method.server.tree, {})
    others = (server.under(str(number)).shared for number in range(1, method.number))
    return [tensors(method.network), *({name: tensor.clone() for name, tensor in each.items()} for each in others)]


def stepping(method):
    """The same method, whose server step works without a trainer."""
    optimizer = method.configure_optimizers()
    method.optimizers = lambda: optimizer
    return method


def assert_weighted_mean(method, start, clients, counts, share=1e-10):
    """The tensors that clients share must be the mean of theirs by their samples, up to a share of the update."""
    assert_shared(method, start, weighted_mean(clients, counts), share)


def assert_shared(method, start, expected, share=1e-10):
    """The tensors that clients share must be these, each up to a share of its update."""
    for name in method.shared:
        update = (expected[name] - start[name]).abs().max()
        assert update > 1e-4
        assert (method.network.state_dict()[name] - expected[name]).abs().max() < share * update


def weighted_mean(clients, counts):
    """Mean of the clients' models, weighted by their samples."""
    return plain_loop.weighted_mean(zip(counts / counts.sum(), clients, strict=True))


def normed(input_shape, num_classes):
    """A network with BatchNorm."""
    return Network({"fc": nn.Linear(*input_shape, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, num_classes)})


class Models(nn.Module):
    """The models by which clients are evaluated, as a metric that keeps them."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def measure(self, params):
        self.params = params
        return torch.arange(len(next(iter(params.own.values()))))

    def update(self, ids, rows):
        self.found |= {client: self.params.client(row) for client, row in zip(ids.tolist(), rows.tolist(), strict=True)}
