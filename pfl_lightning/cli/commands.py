"""The commands of ``pfl``, and what is answered without any of them; imports no library, so that answers are quick."""

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

from pfl_lightning import __version__
from pfl_lightning.cli.help_texts import help_text
from pfl_lightning.errors import PflError

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

pfl COMMAND --help says more about a command, pfl --version which one this is."""


class Command(NamedTuple):
    """What a command does, in a line, and where its function is."""

    line: str
    module: str
    function: str
    quick: bool = False
    """Whether ``answer`` runs it, without the libraries of the parser."""

    def load(self) -> Any:
        """Import the function."""
        return getattr(import_module(f"{__package__}.{self.module}"), self.function)


COMMANDS = {
    "fit": Command("train a method on a data set, or resume a run", "fit", "RunCLI"),
    "validate": Command("evaluate a run again on its validation samples", "fit", "RunCLI"),
    "test": Command("evaluate a run again on its test samples", "fit", "RunCLI"),
    "compare": Command("tables and figures of several runs", "compare", "compare_command"),
    "data": Command("download a data set, or show which client holds what", "data", "data_command"),
    "export": Command("write the model of one client to a file", "export", "export_command"),
    "list": Command("the methods, data sets, networks and so on that there are", "listing", "list_command", quick=True),
    "sweep": Command("many runs: methods, values and seeds, or a search", "sweep", "sweep_command"),
    "completion": Command(
        "a script that completes these words in bash or zsh", "completion", "completion_command", quick=True
    ),
}


def overview() -> str:
    """What ``pfl --help`` says."""
    return HELP.format("\n".join(f"  {name:<12}{command.line}" for name, command in COMMANDS.items()))


def answer(words: list[str]) -> None:
    """Answer a command line for which ``is_quick`` holds.

    Raises:
        SystemExit: With code 2 if the command line is wrong.
    """
    first = words[0] if words else ""
    if first in ("-h", "--help"):
        sys.stdout.write(f"{overview()}\n")
    elif first == "--version":
        sys.stdout.write(f"pfl {__version__}\n")
    elif not first:
        sys.stderr.write(f"{overview()}\n")
        raise SystemExit(2)
    elif first not in COMMANDS:
        sys.stderr.write(f"pfl: error: {_no_command(first)}\n")
        raise SystemExit(2)
    elif asks_for_help(words):
        sys.stdout.write(help_text(first))
    else:
        try:
            COMMANDS[first].load()(words[1:])
        except PflError as error:
            sys.stderr.write(f"pfl: error: {error}\n")
            raise SystemExit(2) from None


def is_quick(words: list[str]) -> bool:
    """Whether ``answer`` does a command line, without the libraries of the parser."""
    command = COMMANDS.get(words[0] if words else "")
    return command is None or command.quick or asks_for_help(words)


def asks_for_help(words: list[str]) -> bool:
    """Whether a command line asks for the short help of a command, and not for that of what follows ``--``."""
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    return bool(help_text(words[0])) and bool({"-h", "--help"} & {*own})


def _no_command(word: str) -> str:
    """What is wrong with the first word of a command line that is no command."""
    allowed = f"allowed: {', '.join(COMMANDS)}"
    if word.startswith("-"):
        return f"{word}: the command before it is missing; {allowed}"
    near = get_close_matches(word, COMMANDS, n=1, cutoff=0.5)
    return f"{word}: no such command{f'; did you mean {near[0]}?' if near else f'; {allowed}'}"
