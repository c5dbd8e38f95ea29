"""Runs a command, and ends the process as a command line should: errors are lines, and codes say what happened."""

import signal
import sys
from collections.abc import Callable
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from pfl_lightning.cli.console import complain, debugging, keep_quiet, say
from pfl_lightning.cli.crew import Crew
from pfl_lightning.cli.errors import MORE, blame, explain
from pfl_lightning.cli.lifeline import Ending
from pfl_lightning.cli.parser import CHOICES
from pfl_lightning.errors import PflError, cause_of, one_line
from pfl_lightning.memory import is_exhausted, keep_freed_memory

EXPECTED = PflError, ValueError, MisconfigurationException, OSError, ModuleNotFoundError, MemoryError, RuntimeError


def run(command: Callable[..., Any], args: list[str] | None) -> None:
    """Run a command.

    Args:
        command: Takes the words after its name; a class of Lightning's command line takes all words and the processes.
        args: Arguments; those of the process by default.

    Raises:
        SystemExit: With code 2 for a wrong command line, 1 for errors found later, 130 or 143 after a signal.
    """
    keep_quiet()
    sys.path.insert(0, "")  # a method of the user's own lies in the working folder
    crew = Crew()
    try:
        if isinstance(command, type):
            keep_freed_memory()
            crew.meet_early()
            command(args, crew=None if args else crew)  # other processes would run the program, not these arguments
        else:
            command((sys.argv[1:] if args is None else args)[1:])
    except BaseException as error:
        if theirs := crew.end(ending_of(error), error):
            if theirs.line:
                say(theirs.line)
            raise SystemExit(theirs.code) from None
        if isinstance(error, SystemExit) or not is_expected(error):
            raise
        ending = ending_of(error)
        if ending.line:
            complain(ending.line)
        raise SystemExit(ending.code) from None
    crew.end(Ending(0))


def is_expected(error: BaseException) -> bool:
    """Whether the user gets a line for an error, and no traceback."""
    if not isinstance(error, Exception):
        return isinstance(error, KeyboardInterrupt)
    is_ours = not isinstance(error, EXPECTED) or (type(error) is RuntimeError and not is_exhausted(error))
    return not debugging() and (not is_ours or bool(blame(error)))


def ending_of(error: BaseException) -> Ending:
    """How an error ends a process."""
    if isinstance(error, SystemExit):
        return Ending(
            error.code if isinstance(error.code, int) else int(error.code is not None), str(cause_of(error) or "")
        )
    return Ending(128 + signal.SIGINT) if isinstance(error, KeyboardInterrupt) else Ending(1, reason(error))


def reason(error: BaseException) -> str:
    """What is wrong, in a line, for an error that the user can fix."""
    if known := cause_of(error):
        return str(known)
    if is_exhausted(error):
        return f"not enough memory: {one_line(error)}; try fewer clients or a smaller network {MORE}"
    return f"{blame(error) or explain(str(error), (), CHOICES)} {MORE}"
