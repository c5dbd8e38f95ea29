"""Clients that train with numbers of their own, such as epochs: those that have the same ones train together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.client import Examples, LocalTraining
from pfl_lightning.client.local_training import OWN_NUMBERS
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.federation.checks import checked_update
from pfl_lightning.federation.cohort import LOSS
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, select
from pfl_lightning.uplink import MEMORY

Work = Callable[[Examples, Params], Params]


def set_own_training(method: Any, data: FederatedDataModule) -> None:
    """Look up the clients that have numbers of their own; clients that are new to a finished run have none.

    Raises:
        PflError: If they cannot be read, are of no client, or are numbers that the rule leaves no choice of.
    """
    method.own_training = {} if data.new_clients else method.local.of_clients(data.client_names, data.eval_clients)
    for own in method.own_training.values():
        own.check(type(method).__name__, method.fixed_local)


def own_update(method: Any, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
    """The ``local_update`` of some clients; arguments and result as there."""
    # what steps of uploads keep is no part of the rule
    received = received.without({name for name in received.own if name.startswith(MEMORY)})

    def update(group: Examples, start: Params) -> Params:
        kept = select(start.own, method.clients.names)
        result = method.local_update(group, start, key)
        trained, losses = checked_update(type(method).__name__, result, len(group), kept)
        return trained.with_own({LOSS: losses})

    trained = each_by_its_own(method, cohort, received, update)
    return trained, trained.own.pop(LOSS)


def own_eval_model(method: Any, model: str, train: Examples, received: Params, key: Key) -> Params:
    """The ``eval_model`` of some clients; arguments and result as there."""

    def evaluated(group: Examples, start: Params) -> Params:
        params: Params = method.eval_model(model, group, start, key)
        return params

    return each_by_its_own(method, train, received, evaluated)


def each_by_its_own(method: Any, cohort: Examples, received: Params, work: Work) -> Params:
    """What some clients make of what they received, each with its own numbers of local training.

    A rule sees only clients that share them, as if they were the method's: so it holds whatever it computes from them,
    such as SCAFFOLD's control variate.

    Args:
        method: The method.
        cohort: Their examples.
        received: Tensors that they start with.
        work: What some of them make of their examples and tensors.
    """
    if not method.own_training:
        return work(cohort, received)
    results, starts, groups = [], [], _groups(method, cohort)
    for local, places in groups:
        group = cohort.at(places)
        start = received if len(group) == len(cohort) else received.take(places.to(cohort.ids.device))
        with _training_by(method, local):
            results.append(work(group, start))
        starts.append(start)
    return _joined(results, starts, received, torch.cat([places for _, places in groups]).argsort())


def report_of(own_training: Mapping[int, LocalTraining], local: LocalTraining, clients: int) -> str:
    """A line that says how many clients have which numbers of their own; empty if none has."""
    if not own_training:
        return ""
    names = [n for n in OWN_NUMBERS if any(getattr(own, n) != getattr(local, n) for own in own_training.values())]
    return (
        f"model.local.clients: {len(own_training)} of {clients} clients have their own {', '.join(names) or 'nothing'}"
    )


def _groups(method: Any, cohort: Examples) -> list[tuple[LocalTraining, Tensor]]:
    """The places of the clients that train alike, rising and on the CPU, and how they train."""
    trainings = [method.own_training.get(client, method.local) for client in cohort.host_ids.tolist()]
    keys = [tuple(getattr(training, name) for name in OWN_NUMBERS) for training in trainings]
    places: dict[Any, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return [(trainings[group[0]], torch.tensor(group)) for group in places.values()]


@contextmanager
def _training_by(method: Any, local: LocalTraining) -> Iterator[None]:
    """Meanwhile the method trains in this way."""
    before = method.local, method.local_sgd
    method.local = local
    method.local_sgd = local.phase(frozenset({method.trains}), method.usual_momentum, method.usual_weight_decay)
    try:
        yield
    finally:
        method.local, method.local_sgd = before


def _joined(results: Sequence[Params], starts: Sequence[Params], received: Params, order: Tensor) -> Params:
    """The results of groups of clients as one; what no group has changed is the very tensor that was received."""
    own = {}
    for name in results[0].own:
        rows = [result.own[name] for result in results]
        before = [start.own.get(name) for start in starts]
        unchanged = all(row is start for row, start in zip(rows, before, strict=True))
        own[name] = received.own[name] if unchanged else torch.cat(rows)[order.to(rows[0].device)]
    return Params(results[0].shared, own)
