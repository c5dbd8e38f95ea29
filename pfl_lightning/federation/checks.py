"""Checks that network, data, server optimizer and aggregator fit together, before a run starts."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl_lightning import models
from pfl_lightning.bounds import NonNegativeFloat, Real
from pfl_lightning.client import UsualLoss
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.models import Network
from pfl_lightning.server import Aggregator, DPAggregator, Weighting
from pfl_lightning.system import Asynchronous, Participation
from pfl_lightning.tasks import Classification, Task, try_loss, try_task
from pfl_lightning.tree import Params, Tree
from pfl_lightning.uplink import ErrorFeedback, Step, one_by_one

Need = Literal["classes", "features", "head", "rounds"]
WHOLE_ROUNDS = ("select_clients", "count_traffic", "advance_clock")  # hooks of methods that look at whole rounds
STEP = "server_update"
# methods put these in front of the names of tensors that they keep beside those of the network
PREFIXES = {
    *("anchor", "change", "cloud", "copy", "correction", "global", "mask", "memory", "mix", "personal"),
    *("previous", "received", "start", "update"),
}
ServerOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def check_networks(method: Any, data: FederatedDataModule) -> None:
    """Check that the networks of a method suit a data set.

    Raises:
        PflError: If one does not, or clients are new to a run with several.
    """
    for architecture in method.architectures:
        network = architecture.network
        is_cut = 0 < len(architecture.parts["head"]) < len(network.state_dict())
        check_network(network, method.task, data, is_cut, method.uploads)
    if data.new_clients and len(method.architectures) > 1:
        raise PflError(f"data.new_clients must be 0 with Architectures, got {data.new_clients}")


def check_network(
    network: Network, task: Task, data: FederatedDataModule, is_cut: bool, uploads: Collection[str]
) -> None:
    """Check that a network suits a data set.

    Args:
        network: The network.
        task: What it learns.
        data: The data set.
        is_cut: Whether the network has a head, and layers beside it.
        uploads: What clients upload beside the shared model.

    Raises:
        PflError: If it cannot take the inputs, or has no body and head for new clients.
    """
    if network.takes != data.input_kind:
        networks = [kind for kind in vars(models).values() if isinstance(kind, type) and issubclass(kind, Network)]
        fitting = sorted(kind.__name__ for kind in networks if kind.takes == data.input_kind and kind is not Network)
        raise PflError(
            f"model.network: {network.kind} takes {network.takes}, {type(data).__name__} has {data.input_kind}; "
            f"allowed: {', '.join(fitting)}, or your own with takes = '{data.input_kind}'{_other_kind(data)}"
        )
    if reserved := PREFIXES.union(uploads) & {name for name, _ in network.named_children()}:
        raise PflError(
            f"model.network: a layer of the name {min(reserved)} is not possible, which methods give to what they keep "
            "beside the network; allowed: another name"
        )
    if task.outputs == 2 and not isinstance(task, Classification) and _has_one_output(network, data):
        raise PflError(f"model.network: {network.kind} has one output for {task.goal}; allowed: two, such as MLP")
    if data.new_clients and data.new_head_epochs and not is_cut:
        lacks = "no head that trains" if network.headless else "only one layer and so no body"
        epochs = f"data.new_head_epochs: {data.new_head_epochs} is not possible with {network.kind}"
        raise PflError(f"{epochs}, which has {lacks}; allowed: 0")


def unused_fine_tuning(data: FederatedDataModule, method: Any) -> str:
    """That clients are not fine-tuned, although the method would, as they have no samples for it; empty otherwise."""
    if not (method.test_only and getattr(method, "eval_epochs", 0)) or method.personal or method.finetunes == "nothing":
        return ""
    option = f"data.{data.held_out.clients_option}"
    return f"model.eval_epochs: not used, since {option} leaves clients no samples to fine-tune on"


def _other_kind(data: FederatedDataModule) -> str:
    """How whole numbers of the user's own data become features, if they can."""
    return "; data.layout: NF makes numbers of them" if data.input_kind == "tokens" and data.understood else ""


def checked_update(method: str, update: Any, cohort: int, kept: Tree) -> tuple[Params, Tensor]:
    """Check what a method's ``local_update`` returns for some clients.

    Args:
        method: Name of the method.
        update: What it returns.
        cohort: Number of the clients.
        kept: What they keep, as they received it, ``[cohort, ...]`` each.

    Raises:
        PflError: If that is something else than tensors and losses, or lacks rows that the clients keep.
    """
    name = f"{method}.local_update"
    match update:
        case Params() as trained, Tensor() as losses if losses.shape == (cohort,):
            for row, before in kept.items():
                after = trained.own.get(row)
                if after is None or after.shape != before.shape:
                    value = "nothing" if after is None else [*after.shape]
                    raise PflError(f"{name} returns {value} as {row}; allowed: a tensor {[*before.shape]}, as received")
            return trained, losses
    allowed = f"Params, and the clients' losses as a tensor [{cohort}]"
    raise PflError(f"{name} returns something else; allowed: {allowed}")


def check_task(method: Any, data: FederatedDataModule) -> None:
    """Try a method's task and a loss of the user's own; check that data have the targets of a task chosen for them.

    Raises:
        PflError: If they have others, or the task or the loss is none.
    """
    try_task(method.task)
    if method.has_own_task:
        try:
            method.task.check(data.tables["train"].samples.targets)
        except ValueError as error:
            raise PflError(f"model.task: {type(method.task).__name__}: {one_line(error)}") from error
    if not isinstance(method.engine.loss, UsualLoss):
        _try_loss(method, data)


def _try_loss(method: Any, data: FederatedDataModule) -> None:
    """Try a loss of the user's own on a few samples; see ``try_loss``.

    Raises:
        PflError: If it fails, or is no loss of samples.
    """
    largest = data.make_eval_batch(data.evaluation_order[:1]).train
    examples = next(largest.windows(4))[1]
    _, outputs, targets, _ = next(method.engine.predictions(examples, method.received(examples.ids)))
    method.network.train()  # as Lightning wants it
    path = method.function_paths["loss"]
    name = f"{type(method).__name__}.sample_losses" if path is None else path.rpartition(".")[2]
    try_loss(method.sample_losses, name, outputs[0], targets[0])


@torch.no_grad()
def _has_one_output(network: Network, data: FederatedDataModule) -> bool:
    """Whether a network takes the two outputs of a task for those of two classes, of which one is enough."""
    is_training = network.training
    shape = data.input_shape if data.input_kind == "numbers" else data.input_shape[:1]
    zeros = next(network.parameters()).new_zeros(1, *shape)
    outputs: Tensor = network.eval()(zeros if data.input_kind == "numbers" else zeros.long())
    network.train(is_training)
    return outputs.shape == (1, 1)


def check_classes(method: str, needs: Collection[Need], task: Task) -> None:
    """Refuse other data than classes for a method that needs them."""
    if "classes" in needs and not isinstance(task, Classification):
        raise PflError(f"model: {method} supports classification only, got {task.goal}")


def try_optimizer(make: ServerOptimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Make the server's optimizer for copies of these parameters, and take a step.

    Args:
        make: Makes it; options that it is partially applied to are checked one by one.
        parameters: Those of the network; they do not change.

    Raises:
        PflError: If it cannot be made, cannot step as the server does, or has options that are not finite.
    """
    for name, value in getattr(make, "keywords", {}).items():
        if isinstance(value, float):
            try:
                (NonNegativeFloat if name == "lr" else Real)(value)
            except ValueError as error:
                raise PflError(f"model.server_optimizer.{name}: {error}") from None
    copies = [nn.Parameter(torch.zeros_like(parameter)) for parameter in parameters if parameter.requires_grad]
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    try:
        make(copies).step()
    except (TypeError, ValueError, RuntimeError) as error:
        raise PflError(f"model.server_optimizer: not possible: {one_line(error)}") from error


def server_read_refusal(aggregator: Aggregator, method: str) -> str:
    """Why the server may not read what clients keep; empty if it may."""
    if not aggregator.hides:
        return ""
    name = type(aggregator).__name__
    reason = f"not possible with {method}, whose server reads what clients keep"
    return f"model.aggregator: {name} is {reason}; allowed: Aggregator"


def check_never_training(data: FederatedDataModule, method: Any) -> None:
    """Refuse clients that never train where clients are evaluated with what they have learned themselves.

    Raises:
        PflError: If there are such clients, and the method has personal models, or statistics of each client.
    """
    option = data.held_out.clients_option
    name = type(method).__name__
    if method.test_only and method.eval_models != ("global",):
        raise PflError(
            f"data.{option} is not possible with {name}, which evaluates clients with personal models "
            f"({', '.join(method.eval_models)}); allowed: 0, or a method evaluated with its global model alone, such "
            "as FedAvg"
        )
    if method.test_only and method.kept:
        raise PflError(f"data.{option} is not possible with model.batch_norm: local; allowed: 0, or average")


def check_participation(participation: Participation, method: Any, base: type) -> None:
    """Refuse what cannot be where clients do not wait for each other.

    Args:
        participation: Who takes part.
        method: The method.
        base: The base of all methods, with hooks that are made for this.

    Raises:
        PflError: If something is not possible.
    """
    if not isinstance(participation, Asynchronous):
        return
    name = type(method).__name__
    aggregator = method.aggregator
    overridden = {hook for hook in (*WHOLE_ROUNDS, STEP) if getattr(type(method), hook) is not getattr(base, hook)}
    if "rounds" in method.needs or overridden - {STEP}:
        raise PflError(
            f"data.participation: Asynchronous is not possible with {name}, whose rule is about all clients of a "
            "round; allowed: Participation"
        )
    if participation.uploads == "models" and overridden:
        raise PflError(
            f"data.participation.uploads: models is not possible with {name}, whose server adds up changes; allowed: "
            "changes"
        )
    if aggregator.needs == "rows":
        what = f"{type(aggregator).__name__} is not possible with Asynchronous, whose uploads are of other rounds"
        raise PflError(f"model.aggregator: {what}; allowed: Aggregator")
    if aggregator.hides:
        raise PflError(
            f"model.aggregator: {type(aggregator).__name__} is not possible with Asynchronous, whose clients do not "
            "know with whom they upload; allowed: Aggregator"
        )


def check_uplink(
    uplink: Sequence[Step], method: str, shared: Collection[str], uploads_models: bool, aggregator: Aggregator
) -> None:
    """Refuse steps of uploads where clients upload no models, or these do not come together.

    Args:
        uplink: The steps.
        method: Name of the method.
        shared: Names of the tensors of the shared model.
        uploads_models: Whether what clients upload under these names is a model.
        aggregator: The method's aggregator.

    Raises:
        PflError: If there are such steps.
    """
    if uplink and not (shared and uploads_models):
        what = "several models, weighted ones, or parts of one" if shared else "no model"
        name = type(uplink[0]).__name__
        raise PflError(f"model.uplink must be empty with {method}, whose clients upload {what}, got {name}")
    remembering = [step for step in uplink if step.remembers]
    if len(remembering) > 1 or any(step not in one_by_one(uplink) for step in remembering):
        raise PflError(
            f"model.uplink: {type(remembering[-1]).__name__} is not possible beside another step with a memory, or "
            "after one that sees all models of a round; allowed: one of them, before it"
        )
    inner = [step.step for step in uplink if isinstance(step, ErrorFeedback)]
    if any(step.together or step.remembers for step in inner):
        raise PflError(
            f"model.uplink.step: {type(inner[0]).__name__} is not possible in ErrorFeedback; allowed: a step that "
            "compresses, such as TopK"
        )
    together = [type(step).__name__ for step in uplink if step.together]
    if together and aggregator.needs != "rows":
        raise PflError(
            f"model.aggregator: {type(aggregator).__name__} is not possible with {together[0]}, which must see all "
            "models of a round; allowed: Mean, or another vote"
        )


def check_aggregator(
    aggregator: Aggregator,
    method: str,
    shared: Collection[str],
    further: Collection[str],
    statistics: Collection[str],
    weighting: Weighting,
    chooses: bool,
    uploads_models: bool,
) -> None:
    """Refuse what an aggregator would not hide, and what ``DPAggregator`` would not protect.

    Args:
        aggregator: The method's aggregator.
        method: Name of the method.
        shared: Names of the tensors of the shared model.
        further: What clients upload beside it.
        statistics: Those of the shared tensors that are statistics of BatchNorm.
        weighting: Weights of the uploads.
        chooses: Whether the method chooses clients by what they hold.
        uploads_models: Whether what clients upload under the names of the shared tensors is a model.

    Raises:
        PflError: If something is not possible, or the library that counts the budget is missing.
    """
    not_possible = f"model.aggregator: {type(aggregator).__name__} is not possible with {method}, whose clients"
    if aggregator.needs == "rows" and not uploads_models:
        allowed = "allowed: Aggregator, SecureAggregator"
        raise PflError(f"{not_possible} upload several models, weighted ones, or parts of one; {allowed}")
    if (aggregator.needs == "rows" and not shared) or (aggregator.hides and not (shared or further)):
        raise PflError(f"{not_possible} upload no model; allowed: Aggregator")
    if not isinstance(aggregator, DPAggregator):
        return
    if weighting != "uniform":
        raise PflError(f"model.weighting: {weighting} is not possible with DPAggregator; allowed: uniform")
    if statistics:
        raise PflError(
            "model.batch_norm: average is not possible with DPAggregator, which would clip statistics with the "
            "parameters; allowed: local, or a network without BatchNorm"
        )
    if chooses:
        raise PflError(f"{not_possible} are chosen by what they hold; allowed: SecureAggregator")
    if further:
        raise PflError(f"{not_possible} upload more than a model; allowed: SecureAggregator")
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        needs = 'uv pip install "pfl_lightning[privacy]"'
        raise PflError(f"model.aggregator: DPAggregator needs {needs} ({error})") from error
