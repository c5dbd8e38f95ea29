"""``pfl list``."""

import shutil
import sys
from pathlib import Path

from pfl_lightning.cli.classes import KINDS, Found, ours, theirs, unreadable
from pfl_lightning.cli.config_files import configs
from pfl_lightning.errors import PflError

USAGE = """usage: pfl list KIND

Lists what settings can name, one line each: what the package has, and the
classes in the Python files of this folder, which are read and not run.

kinds:
{}"""
CONFIGS = "configs"  # the kind that is no class
LISTED = {**{name: kind.option for name, kind in KINDS.items()}, CONFIGS: "--config"}


def list_command(args: list[str]) -> None:
    """Run ``pfl list``.

    Args:
        args: What follows ``list``.

    Raises:
        PflError: If there is no such kind.
    """
    if not args or args[0] in ("-h", "--help"):
        rows = (f"  {name:<12}for {option}" for name, option in LISTED.items())
        sys.stdout.write(f"{USAGE.format(chr(10).join(rows))}\n")
        return
    if args[0] not in LISTED or args[1:]:
        raise PflError(f"list: {' '.join(args)} is not possible; allowed: one of {', '.join(LISTED)}")
    folder = Path()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table(_found(args[0], folder), width):
        sys.stdout.write(f"{line}\n")
    for line in unreadable(folder) if args[0] in KINDS else ():
        sys.stderr.write(f"pfl: note: {line}\n")


def _found(kind: str, folder: Path) -> list[Found]:
    """What there is of a kind."""
    if kind == CONFIGS:
        first = {name: path.read_text().partition("\n")[0] for name, path in configs().items()}
        return [Found(name, line.removeprefix("#").strip()) for name, line in first.items()]
    return [*ours(KINDS[kind]), *theirs(KINDS[kind], folder)]


def table(classes: list[Found], width: int | None) -> list[str]:
    """A line for each class: its name, the file if it is the user's, and what it is.

    Args:
        classes: The classes.
        width: Columns that lines are cut to; None to keep them whole.
    """
    names = max(len(found.name) for found in classes)
    lines = [
        f"{found.name:<{names}}  {f'[{found.file}] ' * bool(found.file)}{found.line}".rstrip() for found in classes
    ]
    return [line if width is None or len(line) <= width else f"{line[: width - 1]}…" for line in lines]
