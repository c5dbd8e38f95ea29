"""``pfl completion``: a script with which a shell completes commands, options and the names of classes.

The options are those of the help texts, so that the script is written without importing the parsers' libraries: shells
ask for it whenever they start.
"""

import re
import sys
from argparse import ArgumentParser

import shtab

from pfl_lightning.cli.aliases import ALIASES
from pfl_lightning.cli.commands import COMMANDS
from pfl_lightning.cli.help_texts import help_text
from pfl_lightning.cli.listing import LISTED
from pfl_lightning.errors import PflError
from pfl_lightning.settings.registry import KINDS, ours

SHELLS = ("bash", "zsh")
USAGE = """usage: pfl completion bash
       pfl completion zsh

Prints a script that completes commands, options, and the names of methods,
data sets and so on. To have it in every new shell, once:
  bash: echo 'eval "$(pfl completion bash)"' >> ~/.bashrc
  zsh:  pfl completion zsh > DIR/_pfl, with a folder DIR of $fpath"""
WORDS = {"list": [*LISTED], "completion": [*SHELLS], "data": ["prepare", "describe"]}  # that follow a command
PATHS = {
    **dict.fromkeys(("--config", "--methods", "--ckpt_path"), shtab.FILE),
    **dict.fromkeys(("--root", "--out", "--data.root", "--trainer.default_root_dir"), shtab.DIRECTORY),
}


def completion_command(args: list[str]) -> None:
    """Run ``pfl completion``.

    Args:
        args: What follows ``completion``.

    Raises:
        PflError: If there is no script for this shell.
    """
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n")
    elif args[0] not in SHELLS or args[1:]:
        raise PflError(f"completion: {' '.join(args)} is not possible; allowed: {' or '.join(SHELLS)}")
    else:
        sys.stdout.write(f"{shtab.complete(_parser(), args[0])}\n")


def _parser() -> ArgumentParser:
    """All commands, as shtab takes them."""
    parser = ArgumentParser(prog="pfl")
    commands = parser.add_subparsers()
    names = {kind.option: [found.name for found in ours(kind)] for kind in KINDS.values()}
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.line)
        for option in options_of(name):
            full = f"--{ALIASES.get(option[2:], option[2:])}"
            action = subparser.add_argument(option, choices=names.get(full.removesuffix(".help")))
            if option in PATHS:
                action.complete = PATHS[option]  # type: ignore[attr-defined]
        if name in WORDS:
            subparser.add_argument("word", choices=WORDS[name])
        if name == "data":
            subparser.add_argument("name", choices=names["--data"])
        elif name not in WORDS:
            subparser.add_argument("run").complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return parser


def options_of(command: str) -> list[str]:
    """The options of a command, such as ``--model.lr``, with their short names."""
    text = help_text("fit" if command == "data" else command)
    return [*dict.fromkeys(re.findall(r"(?:^ {2}|, )(--[\w.]+\+?)", text, re.MULTILINE))]
