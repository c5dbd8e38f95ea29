"""The model of one client, and the head of each client, as ordinary modules."""

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from operator import index
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from pfl_lightning.client import Examples
from pfl_lightning.client.layers import part
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.federation.architectures import network_of
from pfl_lightning.federation.own_training import own_eval_model, set_own_training
from pfl_lightning.models import Network
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, select


class NeedsSamplesError(PflError):
    """The model is trained on the client's samples before it is evaluated, and no data set was given."""


class WithoutSamples:
    """Stands in for the examples of clients whose samples are not at hand: only their ids are known.

    Args:
        ids: Client ids, ``[clients]``.
    """

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsSamplesError(name)


class Heads:
    """The heads that clients keep, in the order of their ids, to be read like an ``nn.ModuleList``.

    The method stores them as stacked tensors, one row per client. An index makes a module with a copy of one row, in
    evaluation mode, which takes features, the outputs of the body: training it changes no client.

    Args:
        method: The method, after training or from ``load_method``.

    Raises:
        PflError: If its clients keep no heads, or the head has no features.
    """

    def __init__(self, method: Any) -> None:
        check_built(method)
        if not method.parts["head"] <= method.kept:
            raise PflError(
                f"heads: clients of {type(method).__name__} keep no heads; allowed: methods whose clients do, such as "
                "FedRep, or client(ID), a whole model"
            )
        method.engine.body_layers()
        self._method = method

    def __len__(self) -> int:
        return int(self._method.num_clients)

    def __iter__(self) -> Iterator[nn.Module]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, client: int) -> nn.Module:
        """The head of one client; -1 is the last one."""
        ids = torch.tensor([range(len(self))[index(client)]], device=self._method.device)
        with network_of(self._method, int(ids)):
            row = {name: tensor[0] for name, tensor in self._method.clients.gather(ids).items()}
            head = deepcopy(part(self._method.network, self._method.engine.body_layers()))
            head.load_state_dict(select(row, self._method.parts["head"]), strict=False)
            return head.eval()


def check_built(method: Any) -> None:
    """Refuse a method that has no clients yet.

    Raises:
        PflError: If it has none.
    """
    if not method.built_for:
        raise PflError(f"client: {type(method).__name__} has no clients yet; allowed: after training, or load_method")


def client_model(
    method: Any, client: int, model: str | None, data: FederatedDataModule | None, merged: bool = True
) -> nn.Module:
    """One client's model of a method; see ``Method.client``.

    Raises:
        PflError: If there is no such client or model; a ``NeedsSamplesError`` if ``data`` is missing.
    """
    check_built(method)
    if model not in (None, *method.eval_models):
        raise PflError(f"model: {model} is not possible; allowed: {', '.join(method.eval_models)}")
    train = examples_of(client, data, method.num_clients, method.device, method.engine.dtype)
    with network_of(method, client):
        return _model_of(method, train, model, data, merged)


def _model_of(
    method: Any, train: Examples, model: str | None, data: FederatedDataModule | None, merged: bool
) -> nn.Module:
    """The model of the only client of some examples, whose network the method has; see ``Method.client``."""
    key: Key = () if data is None else (data.seed, "refit", method.accounting.clock.rounds)
    received = method.received(train.ids)
    if data is not None:
        set_own_training(method, data)
    for name in method.eval_models if model is None else (model,):
        with suppress(NeedsSamplesError):
            params = own_eval_model(method, name, train, received, key)
            network = method.eval_network(name, params)
            module = module_of(network, params)
            is_plain = network is method.network
            if not merged and not (method.adapter and is_plain):
                kind = f"{type(method).__name__}'s {name} model" if method.adapter else "model.adapter null"
                raise PflError(f"as: peft is not possible with {kind}; allowed: a model with one LoRA in each layer")
            return method.adapter.merge(module) if method.adapter and is_plain and merged else module
    raise NeedsSamplesError(f"model: {model or name} is trained on the client's samples; allowed: with data")


def examples_of(
    client: int, data: FederatedDataModule | None, num_clients: int, device: torch.device, dtype: torch.dtype
) -> Examples:
    """The training examples of one client, or what stands in for them if there is no data set.

    Args:
        client: The client's id.
        data: The data set that the clients' samples are from.
        num_clients: Number of clients of the method.
        device: Where the method is.
        dtype: Type of its numbers.

    Raises:
        PflError: If there is no such client, or the data set has other clients.
    """
    if client not in range(num_clients):
        raise PflError(f"client: {client!r} is not possible; allowed: 0 to {num_clients - 1}")
    ids = torch.tensor([int(client)], device=device)
    if data is None:
        return cast(Examples, WithoutSamples(ids))
    if data.eval_clients != num_clients or data.new_clients:
        raise PflError(f"data: {data.eval_clients} clients are not possible; allowed: the {num_clients} of the run")
    data.setup()
    return data.tables["train"].examples(ids.cpu()).to(device, dtype)


def module_of(network: Network, params: Params) -> nn.Module:
    """A network, or the user's own module, with the tensors of the only client of a cohort, in evaluation mode."""
    return network.module_with(select(params.client(0), network.state_dict())).eval()
