"""The model of one client as an ordinary module."""

from contextlib import suppress
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from pfl_lightning.client import Examples
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
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


def client_model(method: Any, client: int, model: str | None, data: FederatedDataModule | None) -> nn.Module:
    """One client's model of a method; see ``Method.client``.

    Raises:
        PflError: If there is no such client or model; a ``NeedsSamplesError`` if ``data`` is missing.
    """
    if not method.built_for:
        raise PflError(f"client: {type(method).__name__} has no clients yet; allowed: after training, or load_method")
    if model not in (None, *method.eval_models):
        raise PflError(f"model: {model} is not possible; allowed: {', '.join(method.eval_models)}")
    train = examples_of(client, data, method.num_clients, method.device)
    key: Key = () if data is None else (data.seed, "refit", method.accounting.clock.rounds)
    received = method.received(train.ids)
    for name in method.eval_models if model is None else (model,):
        with suppress(NeedsSamplesError):
            params = method.eval_model(name, train, received, key)
            return module_of(method.eval_network(name, params), params)
    raise NeedsSamplesError(f"model: {model or name} is trained on the client's samples; allowed: with data")


def examples_of(client: int, data: FederatedDataModule | None, num_clients: int, device: torch.device) -> Examples:
    """The training examples of one client, or what stands in for them if there is no data set.

    Args:
        client: The client's id.
        data: The data set that the clients' samples are from.
        num_clients: Number of clients of the method.
        device: Where the method is.

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
    return data.tables["train"].examples(ids.cpu()).to(device)


def module_of(network: Network, params: Params) -> nn.Module:
    """A network, or the user's own module, with the tensors of the only client of a cohort, in evaluation mode."""
    return network.module_with(select(params.client(0), network.state_dict())).eval()
