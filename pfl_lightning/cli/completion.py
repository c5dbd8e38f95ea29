"""``pfl completion``: a script with which a shell completes commands, options and the names of classes."""

import sys
from argparse import ArgumentParser

import shtab

from pfl_lightning.cli.aliases import ALIASES
from pfl_lightning.cli.classes import KINDS, ours
from pfl_lightning.cli.commands import COMMANDS
from pfl_lightning.cli.listing import LISTED
from pfl_lightning.cli.short_help import ALL, options_of
from pfl_lightning.errors import PflError

SHELLS = ("bash", "zsh")
USAGE = """usage: pfl completion bash
       pfl completion zsh

Prints a script that completes commands, options, and the names of methods,
data sets and so on. To have it in every new shell, once:
  bash: echo 'eval "$(pfl completion bash)"' >> ~/.bashrc
  zsh:  pfl completion zsh > DIR/_pfl, with a folder DIR of $fpath"""
OPTIONS = {  # of the commands that have parsers of their own
    "compare": ("out", "communication_times", "targets", "models", "format"),
    "export": ("client", "model", "root"),
    "sweep": ("config", "seeds", "methods", "vary", "search", "trials", "passed", "out", "jobs"),
}
FILES = {"config": shtab.FILE, "methods": shtab.FILE, "ckpt_path": shtab.FILE}
FOLDERS = dict.fromkeys(("root", "out", "data.root", "trainer.default_root_dir"), shtab.DIRECTORY)


def completion_command(args: list[str]) -> None:
    """Run ``pfl completion``.

    Args:
        args: What follows ``completion``.

    Raises:
        PflError: If it is no shell that there is a script for.
    """
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n")
        return
    if args[0] not in SHELLS or args[1:]:
        raise PflError(f"completion: {' '.join(args)} is not possible; allowed: {' or '.join(SHELLS)}")
    sys.stdout.write(f"{shtab.complete(_parser(), args[0])}\n")


def _parser() -> ArgumentParser:
    """All commands, as the library that writes the scripts takes them."""
    parser = ArgumentParser(prog="pfl")
    parser.add_argument("--version", action="store_true", help="which version this is")
    commands = parser.add_subparsers()
    names = {kind.option: [found.name for found in ours(kind)] for kind in KINDS.values()}
    for name, command in COMMANDS.items():
        _fill(commands.add_parser(name, help=command.line), name, names)
    return parser


def _fill(parser: ArgumentParser, command: str, names: dict[str, list[str]]) -> None:
    """Add what a command takes."""
    if command == "list":
        parser.add_argument("kind", choices=[*LISTED], help="what to list")
    elif command == "completion":
        parser.add_argument("shell", choices=SHELLS, help="for which shell")
    elif command in OPTIONS:
        for option in OPTIONS[command]:
            _add(parser, option, option, names=None)
    else:
        for row in options_of("fit" if command == "data" else command):
            for option in (row.key, *(alias for alias, key in ALIASES.items() if key == row.key)):
                _add(parser, option, row.line, names.get(f"--{row.key.removesuffix('.help')}"))
        parser.add_argument(ALL, action="store_true", help="all options")
    if command == "data":
        parser.add_argument("what", choices=["prepare", "describe"], help="what to do")
        parser.add_argument("name", choices=names["--data"], help="a data set")
    elif command in ("validate", "test", "compare", "export"):
        parser.add_argument("run", help="run folder").complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def _add(parser: ArgumentParser, option: str, line: str, names: list[str] | None) -> None:
    """Add an option, with the names, files or folders that complete its value."""
    action = parser.add_argument(f"--{option}", help=line.replace("%", "%%"), choices=names or None)
    if path := FILES.get(option) or FOLDERS.get(option):
        action.complete = path  # type: ignore[attr-defined]
