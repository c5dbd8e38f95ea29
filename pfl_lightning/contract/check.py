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

from pfl_lightning.contract.methods import METHOD_CHECKS
from pfl_lightning.contract.several import trains_in_several_processes
from pfl_lightning.contract.subject import ContractError, Subject
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.methods import Method
from pfl_lightning.models import MLP
from pfl_lightning.objects import changed_arguments, clone, is_users_file
from pfl_lightning.runs.session import without_chatter

Check = Callable[[Any], None]


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


def check_method(method: Method) -> Iterator[Finding]:
    """Try a method on small data of very unequal clients: one finding after another, in less than a minute.

    Args:
        method: The method, before its first use; it is made again for each run. Its network is a small ``MLP``, unless
            it has been given another one.

    Yields:
        A finding for each rule; if clients do not train at all, that one alone.

    Examples:
        >>> from pfl_lightning.methods import FedRep
        >>> [finding.rule for finding in check_method(FedRep()) if finding.broken]
        []
    """
    small = {"network": partial(MLP, hidden=(8, 5))}
    copies = Copies(type(method), {**small, **(changed_arguments(method) or {})})
    checks = [*METHOD_CHECKS, *([trains_in_several_processes] if can_be_sent(copies) else [])]
    yield from findings(checks, lambda folder: Subject(copies, folder))


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
    for number, check in enumerate(checks):
        start = time.perf_counter()
        broken = ""
        with TemporaryDirectory() as folder, without_chatter(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check(subject(Path(folder)))
            except (ContractError, PflError) as found:
                broken = one_line(found)
            except Exception as error:
                broken = f"{type(error).__name__}: {one_line(error)}{place_of(error)}"
        rule = (check.__doc__ or "").partition("\n")[0].removesuffix(".").replace("``", "")
        yield Finding(rule, broken, time.perf_counter() - start)
        if broken and number == 0:
            return


def place_of(error: Exception) -> str:
    """Where in the user's own files an error was raised, for people; empty if it was not."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(Path(frame.filename))]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
