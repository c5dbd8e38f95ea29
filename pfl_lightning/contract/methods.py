"""What every method must do; the first line of each function says it."""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from pfl_lightning.contract.clients import TwoClasses
from pfl_lightning.contract.subject import LAST, ContractError, Subject, distance, float64, furthest, tensors
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.objects import default_arguments, to_settings
from pfl_lightning.runs.resume import load_method
from pfl_lightning.server import SecureAggregator
from pfl_lightning.system import Participation
from pfl_lightning.tree import Tree

TOLERANCE = 1e-10  # of the largest update, in float64
LEAST = 1e-3  # distance of two runs that are not the same
READS = (
    "server_update reads rows of clients, for which no bits are counted; count them in count_traffic, or name tensors "
    "in uploads, and take their mean"
)
KEEP = "what a later round needs belongs in initial_state (of each client) or server_state, not in self"


def trains_unequal_clients(subject: Subject) -> None:
    """Clients with 1, 4, 9 and more samples train, and all numbers stay finite."""
    data = subject.data(num_clients=7)
    method = subject.built(data)
    before = tensors(method)
    subject.fit(method, data, 2, bare=True)
    for name, tensor in tensors(method).items():
        if not torch.isfinite(tensor).all():
            raise ContractError(
                f"{name} is not finite after two rounds; a client has one sample, and clients lack classes, so guard "
                "each division, and take no deviation of one number"
            )
    if not distance(before, method):
        raise ContractError(
            "nothing has moved in two rounds; local_update must return new tensors, not those it received"
        )
    metrics = subject.fit(subject.make(), data, 2).callback_metrics
    scores = {name: value for name, value in metrics.items() if name.startswith(("val/", "test/"))}
    if wrong := [name for name, value in scores.items() if not torch.isfinite(value)]:
        raise ContractError(f"{wrong[0]} is not finite; eval_model must return finite tensors for each client")


def trains_two_classes(subject: Subject) -> None:
    """Two classes train, of which networks have a single output, the logit of the second."""
    method = subject.trained(1, TwoClasses())
    if not all(torch.isfinite(tensor).all() for tensor in tensors(method).values()):
        raise ContractError("a number is not finite with two classes; use self.sample_losses for the loss of outputs")


def repeats(subject: Subject) -> None:
    """The same seed gives the same run, whatever else has drawn random numbers, and another seed another one."""
    runs = []
    for elsewhere, seed in ((1, 1), (2, 1), (3, 2)):
        torch.manual_seed(elsewhere)
        np.random.seed(elsewhere)
        random.seed(elsewhere)
        runs.append(subject.trained(2, subject.data(seed=seed)))
    first, again, other = runs
    difference, name = furthest(first, again)
    if difference != 0:
        raise ContractError(
            f"two runs of one seed differ in {name} by {difference:.2g}; draw by seed_of and the key of a phase, or in "
            "server_state, not from the generators of torch, numpy or Python"
        )
    if not distance(first, other) > LEAST:
        raise ContractError("runs of two seeds are the same; draw by the key that local_update gets: it has the seed")


def resumes(subject: Subject, callbacks: Callable[[Method], Iterable[pl.Callback]] = lambda method: ()) -> None:
    """A run that was stopped after three of six rounds, and resumed, ends bit for bit as one that was not."""

    def run(rounds: int, folder: str, **options: Any) -> tuple[Method, pl.Trainer]:
        method = subject.make()
        data = subject.data(participation=Participation(pool_size=5, dropout=0.1, deadline=1.5))
        also = [*callbacks(method)]
        return method, subject.fit(method, data, rounds, folder, callbacks=also, val_check_interval=3, **options)

    straight, trainer = run(6, "straight")
    run(3, "resumed")
    resumed, resumed_trainer = run(6, "resumed", ckpt_path=subject.folder / "resumed" / LAST)
    difference, name = furthest(straight, resumed)
    if difference != 0:
        raise ContractError(f"{name} ends another way, by {difference:.2g}; {KEEP}")
    if straight.accounting.state_dict() != resumed.accounting.state_dict():
        raise ContractError(f"bits, sums or simulated time end another way; {KEEP}")
    if trainer.callback_metrics != resumed_trainer.callback_metrics:
        raise ContractError(f"scores or logged numbers end another way; {KEEP}")
    momenta = [repr(each.optimizers[0].state_dict()["state"]) for each in (trainer, resumed_trainer)]
    if momenta[0] != momenta[1]:
        raise ContractError("the server's optimizer ends another way; take its steps by super().server_update")


def works_locally_without_side_effects(subject: Subject) -> None:
    """What clients do in a round changes nothing but what it returns, and done twice gives the same twice."""
    data = subject.data()
    method = subject.built(data)
    batch = data.make_round(0)
    before = tensors(method)
    trees = []
    for _ in range(2):
        done = method.participate(batch, torch.arange(len(batch.examples)), batch.examples)
        trees.append({**tensor_copies("upload", done.upload), **tensor_copies("states", done.states)})
        difference, name = furthest(before, method)
        if difference != 0:
            raise ContractError(
                f"local_update has changed {name} in place, which all clients receive; make a new tensor"
            )
    difference, name = furthest(*trees) if trees[0] else (0, "")
    if difference != 0:
        raise ContractError(f"local work done twice gives another {name}, by {difference:.2g}; {KEEP}")


def tensor_copies(word: str, tree: Tree) -> Tree:
    """Copies of some tensors, with a word before their names."""
    return {f"{word} {name}": tensor.clone() for name, tensor in tree.items()}


def uploads_what_it_says(subject: Subject) -> None:
    """Everything that ``uploads`` names is returned by ``local_update``."""
    data = subject.data()
    method = subject.built(data)
    batch = data.make_round(0)
    sent = method.participate(batch, torch.arange(len(batch.examples)), batch.examples).upload
    words = {name.split(".")[0] for name in sent}
    if missing := sorted({*method.uploads} - words):
        raise ContractError(
            f"uploads names {missing[0]}, but local_update returns no tensor of this name; add it, as in "
            f'trained.with_own({{"{missing[0]}": ...}})'
        )


def does_not_mix_clients(subject: Subject) -> None:
    """What a client gets does not depend on who trains beside it: rounds in chunks of two give the same."""
    compare(
        subject,
        {"in chunks of two clients": {"backend": "sequential", "chunk_size": 2}},
        "local_update sees some of the clients: it must not add up or average over the first axis",
    )


def trains_many_at_once(subject: Subject) -> None:
    """Many clients at once train as one after another."""
    compare(
        subject,
        {"with backend=batched": {"backend": "batched"}},
        "clients have unequal numbers of samples: leave out those that are not present, and draw by the key",
    )


def compare(subject: Subject, ways: Mapping[str, dict[str, Any]], remedy: str) -> float | None:
    """Compare three rounds of a method, one client after another, to those with other options.

    Args:
        subject: The method.
        ways: The options, by the words for them.
        remedy: What to change if they end another way.

    Returns:
        The largest change of a number in these rounds; None if the network cannot be run with some of the options.

    Raises:
        ContractError: If they end another way.
    """
    with float64():
        start, reference = three_rounds(subject, {"backend": "sequential"})
        update = distance(numbers(start), numbers(tensors(reference)))
        for way, options in ways.items():
            try:
                found = three_rounds(subject, options)[1]
            except PflError as error:
                if str(error).startswith("model.backend"):  # the network has layers that cannot
                    return None
                raise
            difference, name = furthest(reference, found)
            if difference != 0 and not difference < TOLERANCE * update:
                raise ContractError(f"{name} differs by {difference:.2g} {way}, of an update of {update:.2g}; {remedy}")
            if reference.accounting.ledger.samples != found.accounting.ledger.samples:
                raise ContractError(f"another number of samples is counted {way}; {remedy}")
        return update


def three_rounds(subject: Subject, options: dict[str, Any]) -> tuple[Tree, Method]:
    """The tensors before three rounds in which uploads may be lost, and the method after them."""
    data = subject.data(participation=Participation(dropout=0.2))
    method = subject.built(data, **options)
    start = tensors(method)
    subject.fit(method, data, 3, bare=True)
    return start, method


def numbers(tree: Tree) -> Tree:
    """All but masks and counts, whose distance is 1 if they have changed at all."""
    return {name: tensor for name, tensor in tree.items() if tensor.is_floating_point()}


def leaves_absent_clients_alone(subject: Subject) -> None:
    """Clients that do not take part in a round keep what they have."""
    data = subject.data(participation=Participation(pool_size=2))
    method = subject.built(data)
    states = [(own.clients, name, own.members) for own in method.architectures for name in own.clients.names]
    before = [clients.stack(name).clone() for clients, name, _ in states]
    subject.fit(method, data, 1, bare=True)
    took_part = {*data.make_round(0).examples.ids.tolist()}
    for rows, (clients, name, members) in zip(before, states, strict=True):
        moved = members[(rows != clients.stack(name)).reshape(len(rows), -1).any(1)]
        absent = sorted({*moved.tolist()} - took_part)
        if absent and not name.startswith(method.written_by_server):
            raise ContractError(
                f"{name} of client {absent[0]} has changed, which did not take part; write the rows of batch.examples "
                "alone, or, if the rule has the server write all, say so: written_by_server = "
                f'("{name.split(".")[0]}",)'
            )


def evaluates_without_side_effects(subject: Subject) -> None:
    """Evaluation changes nothing that training sees."""
    evaluated = subject.make()
    subject.fit(evaluated, subject.data(), 2, val_check_interval=1)
    difference, name = furthest(subject.trained(2), evaluated)
    if difference != 0:
        raise ContractError(
            f"with evaluations between rounds {name} ends another way, by {difference:.2g}; eval_model must return new "
            "tensors, and leave self as it is"
        )


def bears_lost_uploads(subject: Subject) -> None:
    """A round whose uploads are all lost takes time and changes nothing."""
    data = subject.data(participation=Participation(dropout=1.0))
    method = subject.built(data)
    before = tensors(method)
    metrics = subject.fit(method, data, 2).callback_metrics
    difference, name = furthest(before, method)
    if difference != 0:
        raise ContractError(
            f"{name} has changed by {difference:.2g}; change it in server_update, which is left out then"
        )
    if method.accounting.ledger.up or method.accounting.clock.rounds != 2 or not method.accounting.clock.total > 0:
        raise ContractError("bits or time are counted wrongly; count uploads in count_traffic by batch.examples")
    heard_and_lost = [float(metrics[f"system/{name}"]) for name in ("cohort", "dropped")]
    are_finite = all(map(math.isfinite, metrics.values()))
    if heard_and_lost != [0, data.num_clients] or "train/loss" in metrics or not are_finite:
        raise ContractError("what is logged is not of a round that nobody was heard in; leave log_round as it is")


def counts_what_the_server_reads(subject: Subject) -> None:
    """What the server reads of clients' rows is counted as sent."""
    data = subject.data()
    method = subject.built(data)
    if type(method).count_traffic is not Method.count_traffic:
        return
    update = method.server_update

    def watched(mean: Tree, batch: Any) -> None:
        with method.clients.forbid_server_reads(READS):
            update(mean, batch)

    method.server_update = watched  # type: ignore[method-assign]
    try:
        subject.fit(method, data, 1, bare=True)
    except PflError as error:
        if str(error) != READS:
            raise
        raise ContractError(READS) from None


def works_with_secure_sums(subject: Subject) -> None:
    """If it takes an aggregator, it needs no more of the clients than secure sums tell."""
    if "aggregator" not in default_arguments(type(subject.make())):
        return
    try:
        subject.trained(1, aggregator=SecureAggregator())
    except PflError as error:
        raise ContractError(f"{error}; or take a base without this option, such as Method") from error


def is_made_again(subject: Subject) -> None:
    """A checkpoint has all that it takes to make the method again, with its settings."""
    method = subject.make()
    subject.fit(method, subject.data(), 1)
    factories = {name: value for name, value in method.init_args.items() if callable(value)}  # of no settings file
    loaded = load_method(subject.folder / "run" / LAST, **factories)
    difference, name = furthest(method, loaded)
    if type(loaded) is not type(method) or difference != 0:
        raise ContractError(f"{name} is another one; {KEEP}")
    said, wanted = (to_settings(each)["init_args"] for each in (loaded, method))
    for key, value in wanted.items():
        if said.get(key) != value and key not in factories:
            raise ContractError(f"the argument {key} is {said.get(key)}, not {value}; __init__ must not change it")


class Backwards(frozenset[str]):
    """Names in the order of the alphabet, or the other way. A set of names has another one in every process."""

    backwards: bool

    def __new__(cls, names: Iterable[str], backwards: bool) -> "Backwards":
        """Make it, with its order."""
        made = super().__new__(cls, names)
        made.backwards = backwards
        return made

    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__(), reverse=self.backwards))

    def __and__(self, other: Any) -> "Backwards":
        return Backwards(super().__and__(other), self.backwards)

    def __or__(self, other: Any) -> "Backwards":
        return Backwards(super().__or__(other), self.backwards)

    def __sub__(self, other: Any) -> "Backwards":
        return Backwards(super().__sub__(other), self.backwards)

    __rand__ = __and__
    __ror__ = __or__


def does_not_depend_on_the_order_of_names(subject: Subject) -> None:
    """No number depends on the order of a set of names, which is another one in each process."""
    found = []
    for backwards in (False, True):
        data = subject.data()
        method = subject.built(data)
        for part, names in method.parts.items():
            method.parts[part] = Backwards(names, backwards)
        method.kept, method.shared = (Backwards(names, backwards) for names in (method.kept, method.shared))
        method.engine.trainable = Backwards(method.engine.trainable, backwards)
        subject.fit(method, data, 2)
        found.append(method)
    difference, name = furthest(*found)
    if difference != 0:
        raise ContractError(f"{name} differs by {difference:.2g} with names in another order; go through sorted(names)")


METHOD_CHECKS = (
    trains_unequal_clients,
    trains_two_classes,
    repeats,
    resumes,
    works_locally_without_side_effects,
    uploads_what_it_says,
    does_not_mix_clients,
    trains_many_at_once,
    leaves_absent_clients_alone,
    evaluates_without_side_effects,
    bears_lost_uploads,
    counts_what_the_server_reads,
    works_with_secure_sums,
    is_made_again,
    does_not_depend_on_the_order_of_names,
)
UPLOAD_CHECKS = (  # of aggregators, and of steps of uploads
    trains_unequal_clients,
    repeats,
    resumes,
    does_not_mix_clients,
    bears_lost_uploads,
    is_made_again,
)
