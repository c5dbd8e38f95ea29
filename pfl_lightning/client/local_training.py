from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pfl_lightning.bounds import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, PositiveInt
from pfl_lightning.client.phase import LocalOptimizer, Phase
from pfl_lightning.client.schedule import LRSchedule, Schedule
from pfl_lightning.errors import PflError


@dataclass(frozen=True)
class LocalTraining:
    """How clients train on their own samples in a round: mini-batch SGD, or Adam.

    Args:
        epochs: Local epochs per round.
        epoch_steps: Mini-batches per local epoch, drawn at random. Default: all. With 1, ``epochs`` counts mini-batch
            steps, and so do a method's other options in epochs; fine-tuning always takes full epochs.
        batch_size: Local mini-batch size.
        lr: Local learning rate. The default is from SRPFL's code; FedRep can diverge with the paper's 0.1.
        lr_decay: Factor applied to the local learning rates every ``lr_decay_every`` rounds, except when fine-tuning.
        lr_decay_every: Rounds between two decays.
        lr_schedule: Scheduler of torch that steps once a round on a rate of 1: the factor of the local learning rates,
            except when fine-tuning. Default: that of ``lr_decay``.
        optimizer: What takes the clients' steps: ``SGD``, ``AdamW`` or ``Adam``, as in ``torch.optim``; its state is
            reset at the start of each phase. The Adams usually need an ``lr`` of 0.001 or less.
        momentum: Momentum of SGD, reset to zero in every phase. Default: set by the method (usually 0).
        weight_decay: Weight decay (L2 penalty; decoupled with AdamW). Default: set by the method (usually 1e-4).
        decay_biases: Apply ``weight_decay`` to biases too, as torch does.
        clip_norm: Maximum norm of a client's gradient in a step. Default: no clipping.

    Raises:
        PflError: If Adam is to have momentum.
    """

    epochs: PositiveInt = 1
    epoch_steps: PositiveInt | None = None
    batch_size: PositiveInt = 10
    lr: PositiveFloat = 0.01
    lr_decay: PositiveFloat = 1.0
    lr_decay_every: PositiveInt = 1
    lr_schedule: LRSchedule | None = None
    optimizer: LocalOptimizer = "SGD"
    momentum: ClosedUnitInterval | None = None
    weight_decay: NonNegativeFloat | None = None
    decay_biases: bool = False
    clip_norm: PositiveFloat | None = None

    def __post_init__(self) -> None:
        if self.optimizer != "SGD" and self.momentum:
            raise PflError(f"model.local.momentum must be 0 with {self.optimizer}, got {self.momentum}")

    def check(self, method: str, fixed: Mapping[str, Any]) -> None:
        """Refuse numbers that a method's rule leaves no choice of.

        Args:
            method: The method.
            fixed: The numbers that it has, by name.

        Raises:
            PflError: If one is another.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in fixed and value not in (field.default, fixed[field.name]):
                must = "null" if fixed[field.name] is None else fixed[field.name]
                raise PflError(f"model.local.{field.name} must be {must} with {method}, got {value}")

    def phase(self, trainable: frozenset[str], momentum: float, weight_decay: float) -> Phase:
        """A phase with these numbers.

        Args:
            trainable: What it trains.
            momentum: That of SGD, if ``momentum`` is None.
            weight_decay: That, if ``weight_decay`` is None.
        """
        usual_momentum = momentum if self.optimizer == "SGD" else 0.0
        return Phase(
            trainable,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            momentum=usual_momentum if self.momentum is None else self.momentum,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
            decay_biases=self.decay_biases,
            steps=self.epoch_steps,
            clip_norm=self.clip_norm,
            optimizer=self.optimizer,
        )

    def schedule(self) -> Schedule:
        """The factors of the learning rates in all rounds."""
        return Schedule(self.lr_schedule, self.lr_decay, self.lr_decay_every)
