"""What clients of a method send: the steps of an upload, those that see all of them together, and who attacks."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.data import FederatedDataModule, Round
from pfl_lightning.seeding import Key
from pfl_lightning.server import Aggregator, WeightedSum
from pfl_lightning.system import Attackers
from pfl_lightning.tree import Params, Tree, repeated, select, zeros_like
from pfl_lightning.uplink import MEMORY, Senders, Sent, one_by_one, pass_on


def round_key(batch: Round) -> Key:
    """Key of all that is drawn at random in a round."""
    return batch.seed, "train", batch.round_index


def start_sum(method: Any, aggregator: Aggregator, batch: Round) -> WeightedSum:
    """Start the sum of a round.

    Args:
        method: The method.
        aggregator: Adds up; it may be another one than the method's.
        batch: The round.
    """
    received = select(method.network.state_dict(), method.shared)
    steps = method.steps
    together = steps[len(one_by_one(steps)) :]
    aggregator.memory = method.memory.tree
    aggregator.together = partial(_together, method, together, batch, Params(received, {})) if together else None
    return aggregator.start(batch.participants, round_key(batch), received=received)


def _together(method: Any, steps: list[Any], batch: Round, received: Params, ids: Tensor, rows: Tree) -> Tree:
    """The models of all clients of a round, ``[clients, ...]`` each, after the steps that see them together."""
    device = next(iter(rows.values())).device
    return pass_on(steps, rows, senders_of(method, batch, ids.to(device), received)).rows


def senders_of(method: Any, batch: Round, ids: Tensor, received: Params) -> Senders:
    """Some clients of a round as steps see them; arguments as ``Senders`` has them."""
    parameters = method.engine.trainable
    return Senders(ids, received, parameters, batch.training_clients, round_key(batch), batch.round_index)


def sent_one_by_one(method: Any, batch: Round, ids: Tensor, received: Params, trained: Tree) -> Sent:
    """What some clients send after the steps that see them one by one; arguments as for ``Senders``."""
    sent = pass_on(one_by_one(method.steps), trained, senders_of(method, batch, ids, received))
    before = {name: stack for name, stack in received.own.items() if name.startswith(MEMORY)}
    return sent._replace(memory={**before, **sent.memory})  # that of tensors that have not trained stays


def first_memory(method: Any, tensors: Tree, clients: int) -> Tree:
    """What a step has clients keep until their next upload, ``[clients, ...]``: 0 before the first round.

    Args:
        method: The method.
        tensors: Those of its network.
        clients: Number of clients.
    """
    if not any(step.remembers for step in method.uplink):
        return {}
    sent = select(tensors, method.shared & method.engine.trainable)
    return repeated({MEMORY + name: tensor for name, tensor in zeros_like(sent).items()}, clients)


def set_attackers(method: Any, data: FederatedDataModule) -> None:
    """Let the data, which scores attackers apart, and the aggregator know which clients attack.

    Raises:
        PflError: If one is no client of the data.
    """
    attackers = torch.zeros(data.eval_clients, dtype=torch.bool)
    for option, parts in (("data.poison", [data.poison]), ("model.uplink", method.uplink)):
        for part in parts if not data.new_clients else []:
            if isinstance(part, Attackers):
                attackers |= data.attacking(part, option)
    data.attackers = method.aggregator.attackers = attackers
