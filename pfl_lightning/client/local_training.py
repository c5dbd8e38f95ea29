import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from pfl_lightning.bounds import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, PositiveInt
from pfl_lightning.client.phase import LocalOptimizer, Phase
from pfl_lightning.client.schedule import LRSchedule, Schedule
from pfl_lightning.errors import PflError, nearest, number_of, one_line
from pfl_lightning.paths import expand_home

OWN = "model.local.clients"
OWN_NUMBERS: Mapping[str, Any] = MappingProxyType(
    {"epochs": PositiveInt, "epoch_steps": PositiveInt, "batch_size": PositiveInt, "lr": PositiveFloat}
)
Numbers = Mapping[str, Any]


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
        clients: Single clients' own ``epochs``, ``epoch_steps``, ``batch_size`` and ``lr``: by the client's name in the
            data, or its number (``{ward 3: {epochs: 2}}``), or a CSV file with a column ``client`` and columns of these
            names, where an empty field leaves the number as it is. They hold for fine-tuning, too.

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
    clients: str | Mapping[str, Mapping[str, float]] | None = None

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

    def of_clients(self, names: Sequence[str], count: int) -> dict[int, "LocalTraining"]:
        """The training of each client that has numbers of its own, by the client's number.

        Args:
            names: The data's names of the clients, in the order of their numbers; if there are none, they are numbers.
            count: Number of clients.

        Raises:
            PflError: If there is no such client, or the numbers cannot be read, or are none of local training.
        """
        if self.clients is None:
            return {}
        names = names or [str(number) for number in range(count)]
        numbers = {name: number for number, name in enumerate(names)}
        own = {}
        for client, row in _read(self.clients) if isinstance(self.clients, str) else self.clients.items():
            number = number_of(str(client), numbers, OWN)
            changes: dict[str, Any] = dict(_numbers(str(client), row))
            own[number] = replace(self, **changes, clients=None)
        return own

    def schedule(self) -> Schedule:
        """The factors of the learning rates in all rounds."""
        return Schedule(self.lr_schedule, self.lr_decay, self.lr_decay_every)


def _read(file: str) -> Iterator[tuple[str, Numbers]]:
    """The name of each client in a CSV file, and its numbers.

    Raises:
        PflError: If it cannot be read, a client is there twice, or there is no column of clients.
    """
    path = expand_home(file, OWN)
    try:
        lines = list(csv.reader(path.read_text("utf-8-sig").splitlines(), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise PflError(
            f"{OWN}: '{file}' cannot be read ({getattr(error, 'strerror', None) or one_line(error)})"
        ) from error
    columns = lines[0] if lines else []
    if "client" not in columns or len({*columns}) < len(columns):
        raise PflError(f"{OWN}: '{file}' must have a column client, and each once, got {', '.join(columns) or 'none'}")
    seen = set()
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(columns):
            raise PflError(f"{OWN}: line {number} of '{file}' must have {len(columns)} fields, got {len(line)}")
        row = dict(zip(columns, line, strict=True))
        client = row.pop("client")
        if client in seen:
            raise PflError(f"{OWN}: '{file}' must have each client once, got {client} again in line {number}")
        seen.add(client)
        yield client, {name: value for name, value in row.items() if value.strip()}


def _numbers(client: str, row: Numbers) -> Iterator[tuple[str, float]]:
    """The numbers of a client, by name.

    Raises:
        PflError: If one is not possible, or is none of local training.
    """
    for name, value in row.items():
        if name not in OWN_NUMBERS:
            allowed = ", ".join(OWN_NUMBERS)
            raise PflError(f"{OWN}: {name} is not possible{nearest(name, OWN_NUMBERS)}; allowed: {allowed}")
        kind = OWN_NUMBERS[name]
        try:
            yield name, kind(value)
        except ValueError as error:
            raise PflError(f"{OWN}: {name} of {client} must be {kind.__doc__}, got {value}") from error
