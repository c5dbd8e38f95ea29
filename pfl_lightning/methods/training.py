import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.client import (
    STANDARD,
    Cost,
    Examples,
    Loss,
    OwnLoss,
    Penalty,
    Phase,
    Rehearsal,
    sample_losses,
    total,
    try_loss,
)
from pfl_lightning.data import FederatedDataModule, Round
from pfl_lightning.federation.checkpoints import check_given, check_method
from pfl_lightning.federation.schedule import Schedule
from pfl_lightning.methods.lifecycle import Lifecycle
from pfl_lightning.models import Part
from pfl_lightning.tree import Params, Tree


class Trained(Lifecycle):
    """The local training of every method: phases of SGD with the method's settings.

    Attributes:
        schedule: The factor of all local learning rates in each round.
        given: Import paths of what checkpoints do not hold, by option.
        shared: Names of the tensors that clients receive from the server.
    """

    schedule: Schedule
    given: dict[str, str | None]
    shared: frozenset[str]
    epoch_steps: int | None
    batch_size: int
    momentum: float
    weight_decay: float
    decay_biases: bool
    clip_norm: float | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rehearsals: dict[str, Rehearsal] = {}

    # What a method may override

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each sample, for training and evaluation; by default the one given as ``loss``, or the standard one.

        Args:
            outputs: Outputs of the network, ``[samples, outputs]``.
            targets: Class labels, or floating-point targets of a regression, ``[samples]``.

        Returns:
            Losses, ``[samples]``; each must depend on its own sample alone.
        """
        return (sample_losses if self.own_loss is None else self.own_loss)(outputs, targets)

    # What every method shares

    def build_for(self, data: FederatedDataModule, resumes: bool = False) -> None:
        """Build the method for a data set, and try what it trains with; see ``Lifecycle.build_for``."""
        super().build_for(data, resumes)
        self.schedule.factor(0)
        if isinstance(self.engine.loss, OwnLoss):
            largest = data.make_eval_batch(data.evaluation_order[:1]).train
            few = next(largest.windows(4))[1]
            _, outputs, targets, _ = next(self.engine.predictions(few, self.received(few.ids)))
            self.network.train()  # as Lightning wants it
            try_loss(self.sample_losses, self._loss_name, outputs[0], targets[0])

    def made_loss(self) -> Loss:
        """The loss for the engine: the standard one, unless a method or a user says otherwise."""
        is_standard = self.own_loss is None and type(self).sample_losses is Trained.sample_losses
        return STANDARD if is_standard else OwnLoss(self.sample_losses)

    @property
    def _loss_name(self) -> str:
        """The loss in errors."""
        if type(self).sample_losses is not Trained.sample_losses:
            return f"{type(self).__name__}.sample_losses"
        return str(self.given["loss"]).rpartition(".")[2]

    def setup(self, stage: str) -> None:
        """Build the network for the data set, and learn the rates of all rounds before the first one."""
        super().setup(stage)
        self._rehearsals.clear()
        if stage == "fit":
            self.schedule.factor(max(self.trainer.max_steps, 0))

    def phase(self, part: Part, epochs: int, lr: float | None = None, penalty: Penalty | None = None) -> Phase:
        """A local phase of the current round that trains one part of the network with the method's settings.

        Args:
            part: The part.
            epochs: Local epochs.
            lr: Learning rate; the method's by default.
            penalty: The method's own penalty; that of ``sparsity`` is added.
        """
        rate, both = self.rate(lr or self.lr), total(penalty, self.sparsity.penalty(self.shared_parameters))
        phase = Phase(self.parts[part], epochs, self.batch_size, rate, self.momentum, self.weight_decay)
        return replace(
            phase, decay_biases=self.decay_biases, steps=self.epoch_steps, clip_norm=self.clip_norm, penalty=both
        )

    def rate(self, lr: float) -> float:
        """A local learning rate in the current round."""
        return lr * self.schedule.factor(self.clock.rounds)

    def log_round(self, batch: Round, loss: Tensor | None) -> None:
        """Log a round, and its local learning rate if there is a schedule."""
        super().log_round(batch, loss)
        if not self.schedule.is_constant:
            self.log("train/lr", self.lr * self.schedule.factor(self.clock.rounds - 1))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the names of the loss and the schedule, which a checkpoint does not hold."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["given"] = self.given

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the loss and the schedule are the same; see ``Lifecycle.on_load_checkpoint``."""
        check_method(checkpoint)
        check_given(checkpoint, self.given)
        super().on_load_checkpoint(checkpoint)

    @property
    def shared_parameters(self) -> Tree:
        """The server's parameters of the shared part; empty if nothing is shared."""
        return {name: tensor.data for name, tensor in self.network.named_parameters() if name in self.shared}

    # The share of this process

    @contextmanager
    def share_of(self, examples: Examples, changes: bool = False) -> Iterator[tuple[Tensor, Examples]]:
        """The clients of a cohort that this process works for, and meanwhile the rows of ``clients`` that are theirs.

        All clients are shared out among the processes, so that these visit about as many samples each.

        Args:
            examples: Examples of the cohort.
            changes: Whether the clients' rows may change.

        Yields:
            Places of the clients in the cohort, rising, ``[share]``, and their examples.
        """
        shares = processes.shares(self.phase("all", 1).visited(examples.counts))
        mine = shares[processes.rank()]
        with self.clients.lent([examples.host_ids[places] for places in shares], changes):
            yield mine, examples.at(mine)

    def map_clients(self, doing: str, work: Callable[[int, Examples], Tensor], cohort: Examples) -> Tensor:
        """One number of each client of a cohort, known to all processes, on the CPU, ``[cohort]``.

        Args:
            doing: The work, as a participle.
            work: Takes the place of a chunk's first client and the chunk, and returns their numbers, ``[chunk]``.
            cohort: Examples of the cohort.
        """
        with self.share_of(cohort) as (places, mine):
            chunks = self.chunks.map(work, mine)
            found = [numbers.cpu() for numbers in self.progress.over(doing, mine.counts, chunks)]
        numbers = torch.zeros(len(cohort), dtype=next(self.network.parameters()).dtype)
        if found:
            numbers[places] = torch.cat(found)
        return processes.total({"": numbers})[""]

    # What work costs

    def training_cost(self, cohort: Examples) -> Cost:
        """What ``local_update`` costs these clients; it is rehearsed once in a run, with the first of them."""
        if not len(cohort):
            return Cost(*3 * [cohort.counts])
        if "training" not in self._rehearsals:
            one = cohort.rows(0, 1)
            received = Params(self.received(one.ids[:0]).shared, self.clients.example_row())
            self.rehearse("training", lambda: self.local_update(one, received, ("rehearsal",)))
        return self._rehearsals["training"].cost(cohort.counts)

    def rehearse(self, name: str, work: Callable[[], object]) -> None:
        """Note what some work asks of the engine, which does nothing meanwhile; warn if none uses the own loss."""
        engine, asked = self.engine, Rehearsal(self.network)
        self.engine = asked
        try:
            work()
        finally:
            self.engine = engine
        self._rehearsals[name] = asked
        if name == "training" and isinstance(engine.loss, OwnLoss) and not (asked.phases or asked.passes):
            where = f"{type(self).__name__}.local_update trains without the engine"
            warnings.warn(f"{where}: {self._loss_name} is used in scores alone", stacklevel=2)
