"""The ``pfl`` command: its subcommands, and what is answered without any of them.

Imports no library, so that such answers are quick.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pfl_lightning import __version__
from pfl_lightning.errors import PflError, nearest

HELP = """usage: pfl COMMAND [options]

Personalized federated learning on PyTorch Lightning: a method, a data set and
who takes part in each round.

commands:
{}

examples:
  pfl fit --model FedRep --data Digits --rounds 30
  pfl list methods
  pfl test runs/FedRep-Digits/version_0
  pfl compare runs/*/version_0

pfl COMMAND --help says more about a command, pfl --version prints the version."""


COMMANDS = {  # the module of each command, which has its function, and what it does
    "fit": ("fit", "train a method on a data set, or resume a run"),
    "validate": ("fit", "evaluate a run again on its validation samples"),
    "test": ("fit", "evaluate a run again on its test samples"),
    "bench": ("bench", "many methods on a suite of data sets: tuned, run, ranked"),
    "check": ("check", "whether a method of your own keeps the contract of a method"),
    "compare": ("compare", "tables and figures of several runs"),
    "data": ("data", "download a data set, or show which client holds what"),
    "export": ("export", "write the model of one client to a file"),
    "list": ("listing", "the methods, data sets, networks and so on that there are"),
    "sweep": ("sweep", "many runs: methods, values and seeds, or a search"),
}


def load(command: str) -> Any:
    """Import the function of a command.

    Raises:
        PflError: If there is no such command, or matplotlib, which looks when it is imported, has no such backend.
    """
    if command not in COMMANDS:
        allowed = f"allowed: {', '.join(COMMANDS)}"
        if command.startswith("-"):
            raise PflError(f"{command}: the command before it is missing; {allowed}")
        raise PflError(f"{command}: no such command{nearest(command, COMMANDS) or f'; {allowed}'}")
    module, _ = COMMANDS[command]
    try:
        return getattr(import_module(f"{__package__}.{module}"), f"{command}_command")
    except ValueError as error:
        if "MPLBACKEND" not in os.environ:
            raise
        raise PflError(f"MPLBACKEND: {error}") from error


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: Arguments; those of the process by default.

    Raises:
        SystemExit: With code 2 for a wrong command line, 1 for errors found later, 130, 138 or 143 after a signal.
    """
    prepare(args)()


def prepare(args: list[str] | None = None) -> Callable[[], None]:
    """Import what a command line needs, which takes seconds for most commands, and return what runs it."""
    words = sys.argv[1:] if args is None else args
    command = words[0] if words else ""
    if command not in COMMANDS or command == "list" or asks_for_help(words):
        return partial(answer, words)
    from pfl_lightning.cli.running import run

    with ending_with_code_2():
        return partial(run, written_out()(load(command)), [*map(str, words[1:])])


def answer(words: list[str]) -> None:
    """Answer a command line that needs no library.

    Raises:
        SystemExit: With code 2 if the command line is wrong, 1 if the answer cannot be written.
    """
    command = words[0] if words else ""
    if not command:
        sys.stderr.write(f"{overview()}\n")
        raise SystemExit(2)
    if sys.stdout is None:
        refuse_output("closed")
    with ending_with_code_2(), written_out():
        if command in ("-h", "--help"):
            sys.stdout.write(f"{overview()}\n")
        elif command == "--version":
            sys.stdout.write(f"pfl {__version__}\n")
        elif command in COMMANDS and asks_for_help(words):
            sys.stdout.write(help_text(command))
        else:
            load(command)(words[1:])


@contextmanager
def ending_with_code_2() -> Iterator[None]:
    """End the process with a line and code 2 after a ``PflError``."""
    try:
        yield
    except PflError as error:
        sys.stderr.write(f"pfl: error: {error}\n")
        raise SystemExit(2) from None


@contextmanager
def written_out() -> Iterator[None]:
    """All that the block writes to stdout has left the process when it ends; a closed stdout only matters to answers.

    Raises:
        SystemExit: With code 1 if it cannot leave, after a line that says why, unless its reader has ended.
    """
    is_closed = sys.stdout is None
    if is_closed:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        yield
    except SystemExit as ended:
        if is_closed and not ended.code:  # the parser has answered
            refuse_output("closed")
        raise
    except OSError as error:
        if error.filename is None:
            flush("\n")  # which fails again if stdout did
        raise
    finally:
        flush()


def flush(text: str = "") -> None:
    """Write a text, and all before it, to stdout; see ``written_out``."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries again when it ends
        if isinstance(error, BrokenPipeError):
            raise SystemExit(1) from None
        refuse_output(error.strerror)


def refuse_output(reason: str | None) -> NoReturn:
    """End the process with a line and code 1, since nothing can be written to stdout."""
    sys.stderr.write(f"pfl: error: stdout: cannot be written ({reason})\n")
    raise SystemExit(1) from None


def overview() -> str:
    """What ``pfl --help`` says."""
    return HELP.format("\n".join(f"  {name:<12}{line}" for name, (_, line) in COMMANDS.items()))


def help_text(command: str) -> str:
    """The short help of a command, from its file: the options that most runs need; empty if it has none."""
    split = {"validate": "validation", "test": "test"}.get(command)
    file = Path(__file__).with_name("help") / f"{'evaluate' if split else command}.txt"
    text = file.read_text() if file.is_file() else ""
    return text.format(command=command, split=split) if split else text


def asks_for_help(words: list[str]) -> bool:
    """Whether a command line asks for the short help of a command, and not for that of what follows ``--``."""
    options = words[1 : words.index("--")] if "--" in words else words[1:]
    return bool(help_text(words[0])) and bool({"-h", "--help"} & {*options})
