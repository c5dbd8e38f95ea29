"""Whether a part of a run keeps its contract: what it does is tried, and what does not hold is said in a sentence."""

import pickle
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pfl_lightning.contract.methods import METHOD_CHECKS, UPLOAD_CHECKS
from pfl_lightning.contract.parts import PARTITION_CHECKS, POISON_CHECKS, TASK_CHECKS
from pfl_lightning.contract.several import trains_in_several_processes
from pfl_lightning.contract.subject import ContractError, Subject
from pfl_lightning.data import Partition, Poison
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.methods import FedAvg, Method
from pfl_lightning.models import MLP
from pfl_lightning.objects import changed_arguments, clone, is_users_file
from pfl_lightning.runs.session import without_chatter
from pfl_lightning.server import Aggregator, Mean
from pfl_lightning.tasks import Task
from pfl_lightning.uplink import Step

Check = Callable[[Any], None]
OUTPUTS = 4  # of a task on its own


class Finding(NamedTuple):
    """What came out of one check.

    Attributes:
        rule: What must hold.
        broken: What does not, and what to change; empty if it holds.
        seconds: How long the check took.
    """

    rule: str
    broken: str
    seconds: float


def check(part: Method | Aggregator | Step | Partition | Task | Poison) -> Iterator[Finding]:
    """Try a part of a run on small data of very unequal clients: one finding after another, in less than a minute.

    Args:
        part: A method, a partition, a task, a poison, an aggregator or a step of uploads, before its first use; it is
            made again for each run. A method's network is a small ``MLP``, unless it has another one. Aggregators and
            steps are those of FedAvg, with a plain vote after a step that needs one. Poisons are tried on pictures.

    Yields:
        A finding for each rule; if the first does not hold, that one alone.

    Raises:
        PflError: If it is something else.

    Examples:
        >>> from pfl_lightning.data import IID
        >>> [finding.broken for finding in check(IID())]
        ['', '']
    """
    if isinstance(part, Partition):
        yield from findings(PARTITION_CHECKS, lambda folder: part)
        return
    if isinstance(part, Task):
        yield from findings(TASK_CHECKS, lambda folder: part if part.outputs else part.sized(OUTPUTS))
        return
    if isinstance(part, Poison):
        yield from findings(POISON_CHECKS, lambda folder: part)
        return
    rules: Sequence[Check] = METHOD_CHECKS if isinstance(part, Method) else UPLOAD_CHECKS
    copies = Copies(*kind_and_arguments(part))
    several = [trains_in_several_processes] if can_be_sent(copies) else []
    yield from findings([*rules, *several], lambda folder: Subject(copies, folder))


def kind_and_arguments(part: object) -> tuple[type[Method], dict[str, Any]]:
    """The method that a part is tried in, and its arguments.

    Raises:
        PflError: If there is none.
    """
    small = {"network": partial(MLP, hidden=(8, 5))}
    if isinstance(part, Method):
        return type(part), {**small, **(changed_arguments(part) or {})}
    if isinstance(part, Aggregator):
        return FedAvg, {**small, "aggregator": part, "weighting": "uniform"}
    if isinstance(part, Step):
        vote = {"aggregator": Mean()} if part.together else {}
        return FedAvg, {**small, **vote, "uplink": [part]}
    kinds = "a method, a partition, a task, a poison, an aggregator or a step of uploads"
    raise PflError(f"check: {type(part).__name__} is not possible; allowed: {kinds}")


@dataclass(frozen=True)
class Copies:
    """Makes methods of a class.

    Attributes:
        kind: The class.
        arguments: Its arguments, which each of them gets copies of.
    """

    kind: Callable[..., Method]
    arguments: Mapping[str, Any]

    def __call__(self, **changes: Any) -> Method:
        """A method, with some other arguments."""
        return self.kind(**{**{name: clone(value) for name, value in self.arguments.items()}, **changes})


def can_be_sent(copies: Copies) -> bool:
    """Whether another process can make the objects: one that finds the class in a file, and no nameless function."""
    try:
        pickle.dumps(copies)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return copies.kind.__module__ != "__main__"


def findings(checks: Sequence[Check], subject: Callable[[Path], Any]) -> Iterator[Finding]:
    """Try some rules in turn; if the first one does not hold, no other is tried.

    Args:
        checks: Functions of a subject, which raise ``ContractError``; the first line of the docstring is the rule.
        subject: Makes what is tried, given an empty folder.
    """
    for number, keeps in enumerate(checks):
        start = time.perf_counter()
        broken = ""
        with TemporaryDirectory() as folder, without_chatter(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                keeps(subject(Path(folder)))
            except (ContractError, PflError) as found:
                broken = one_line(found)
            except Exception as error:
                broken = f"{type(error).__name__}: {one_line(error)}{place_of(error)}"
        rule = (keeps.__doc__ or "").partition("\n")[0].removesuffix(".").replace("``", "")
        yield Finding(rule, broken, time.perf_counter() - start)
        if broken and number == 0:
            return


def place_of(error: Exception) -> str:
    """Where in the user's own files an error was raised, for people; empty if it was not."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(Path(frame.filename))]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
