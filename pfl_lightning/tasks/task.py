from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from pfl_lightning.errors import PflError
from pfl_lightning.objects import constructor_arguments
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks.own_loss import OwnLoss, loss_of_samples

Sums = Mapping[str, Tensor]
AMOUNT = "amount"  # the sum of a client's amounts, among the sums


class Task(nn.Module, ABC):
    """What the targets of a data set are: their losses, and what clients are scored by.

    A data set has a task, which ``model.task`` replaces. Whatever else differs between tasks is said here: what targets
    are checked for, what partitions by class look at, and how predictions become scores. A score is a function of sums
    over samples, so that chunks and processes agree.

    Args:
        loss: Loss of each sample, from outputs ``[samples, ...]`` and targets ``[samples, ...]``: a module without
            parameters, or from Python a function. Default: the task's usual one.

    Attributes:
        outputs: Number of outputs of a network for a sample, or for each part of it that has a target, such as a pixel;
            that of the data set, which sets it by ``sized``.
    """

    score: ClassVar[ScoreKind]  # what clients are compared by
    every_step: ClassVar[bool] = False  # whether outputs are those of each step, ``[samples, steps, outputs]``
    is_mean: ClassVar[bool] = False  # whether the score of a client is the mean of one of each of its samples

    def __init__(self, loss: OwnLoss | None = None) -> None:
        super().__init__()
        self.init_args = constructor_arguments(Task)
        self.own_loss = loss_of_samples(loss)
        self.outputs = 0

    def sized(self, outputs: int) -> Self:
        """The same task for networks with so many outputs."""
        task = copy(self)
        task.outputs = int(outputs)
        return task

    def in_place_of(self, task: "Task") -> Self:
        """The same task for data that have another one; by default with as many outputs."""
        return self.sized(task.outputs)

    @property
    def classes(self) -> int:
        """Number of classes among which partitions distinguish; 1 if there are none."""
        return 1

    @property
    @abstractmethod
    def goal(self) -> str:
        """What networks learn, for people."""

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a network's outputs for one input, given that of the input."""
        return (self.outputs,)

    def target_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Shape of the target of one input, given that of the input; None if it does not depend on that."""
        return None

    @abstractmethod
    def check(self, targets: Tensor) -> None:
        """Check the targets of all samples, ``[samples, ...]``.

        Raises:
            ValueError: If they are not those of this task.
        """

    def labels(self, targets: Tensor) -> Tensor:
        """The class that partitions see of each sample, int64 ``[samples]``; by default one for all."""
        return torch.zeros(len(targets), dtype=torch.int64)

    @abstractmethod
    def examples(self) -> tuple[Tensor, Tensor]:
        """Outputs and targets of a few samples that are predicted rightly, to try losses and metrics with."""

    # Losses

    @abstractmethod
    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The usual loss of each sample, ``[samples]``, from outputs and targets, ``[samples, ...]`` both."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, ``[samples]``: the user's own one, or the usual one; arguments as for that."""
        losses: Tensor = (self.usual_losses if self.own_loss is None else self.own_loss)(outputs, targets)
        return losses

    def usual_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
        """The usual losses, and their gradients with respect to the outputs by formula; None without a formula.

        Args:
            outputs: ``[clients, batch, ...]``.
            targets: ``[clients, batch, ...]``.
        """
        return None

    def amounts(self, targets: Tensor) -> Tensor | None:
        """How much of a mini-batch each sample is, ``[samples]``, such as its number of tokens; None for 1 each.

        The loss of a sample is the sum over its parts. A local step divides the summed losses of its mini-batch by the
        summed amounts, and the mean loss of a client is the same over all of its samples. If all amounts are 0, the
        gradient of the loss is 0; as ever, momentum, weight decay and penalties still move the parameters.

        Args:
            targets: ``[samples, ...]``.
        """
        return None

    # Scores

    @abstractmethod
    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Additive statistics of each sample, by name, ``[samples, ...]`` each; its loss is added up anyway."""

    @abstractmethod
    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The scores of clients, ``[clients]`` each, with ``score`` first; nan where a client has none.

        Clients without a score are left out of its mean, percentiles and worst value, and counted (``left_out``).

        Args:
            sums: Sums of the statistics, of the ``loss`` and, if there are amounts, of the ``amount`` over each
                client's samples, ``[clients, ...]``.
            samples: Number of its samples, ``[clients]``.
        """

    def columns(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """What a table has of clients beside samples and mean loss, ``[clients]`` each; by default the scores.

        Reports read the clients' scores from the column with the name of ``score``.
        """
        return self.scores(sums, samples)

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """Outputs as torchmetrics takes them; by default as they are.

        Args:
            outputs: ``[samples, ...]``.
            takes_classes: Whether the metric has an option for the number of classes.
        """
        return outputs


def try_task(task: Task) -> None:
    """Try a task on its own examples before training.

    Raises:
        PflError: If its losses or statistics are not those of samples, or its scores lack that of clients.
    """
    kind = type(task).__name__
    outputs, targets = task.examples()
    losses = task.usual_losses(outputs, targets)
    statistics = task.statistics(outputs, targets)
    rows = f"a row for each of {len(targets)} samples, got the shape"
    if losses.shape != targets.shape[:1]:
        raise PflError(f"model.task: {kind}.usual_losses must return {rows} {[*losses.shape]}")
    for name, values in statistics.items():
        if values.shape[:1] != targets.shape[:1]:
            raise PflError(f"model.task: {kind}.statistics must return {rows} {[*values.shape]} as {name}")
    amounts = task.amounts(targets)
    of_samples = {"loss": losses, **statistics, **({} if amounts is None else {AMOUNT: amounts})}
    sums = {name: values.sum(0, keepdim=True) for name, values in of_samples.items()}
    scores = task.scores(sums, torch.tensor([len(targets)]))
    if task.score.name not in scores:
        raise PflError(f"model.task: {kind}.scores must have {task.score.name}, got {', '.join(scores) or 'none'}")


def check_values(values: Tensor, valid: Tensor, name: str, requirement: str) -> None:
    """Check values of samples.

    Args:
        values: ``[samples, ...]``.
        valid: Whether each of them is, of the same shape.
        name: What they are, for the error.
        requirement: What they must be, for the error.

    Raises:
        ValueError: If one of them is not valid; it names the first, and its sample.
    """
    if not valid.all():
        place = valid.logical_not().nonzero()[0]
        raise ValueError(f"{name} must be {requirement}, got {values[tuple(place)].item()} in sample {place[0]}")
