"""``pfl list``: what settings can name."""

import shutil
import sys
from pathlib import Path

from pfl_lightning.errors import PflError, printable
from pfl_lightning.settings.registry import KINDS, Choice, package_classes, user_classes
from pfl_lightning.settings.shipped_files import configs

USAGE = """usage: pfl list KIND

Lists what settings can name, one line each: what the package has, and the
classes in the Python files of this folder, which are read and not run.

kinds:
{}"""
LISTED = {**{name: kind.option for name, kind in KINDS.items()}, "configs": "--config"}


def list_command(args: list[str]) -> None:
    """Run ``pfl list``.

    Args:
        args: What follows ``list``.

    Raises:
        PflError: If there is no such kind.
    """
    if not args or args[0] in ("-h", "--help"):
        rows = (f"  {name:<{max(map(len, LISTED))}}  for {option}" for name, option in LISTED.items())
        sys.stdout.write(f"{USAGE.format(chr(10).join(rows))}\n")
    elif args[0] not in LISTED or args[1:]:
        raise PflError(f"list: {' '.join(args)} is not possible; allowed: one of {', '.join(LISTED)}")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in table(_choices(args[0]), width):
            sys.stdout.write(f"{printable(line)}\n")


def _choices(kind: str) -> list[Choice]:
    if kind in KINDS:
        return [*package_classes(KINDS[kind]), *user_classes(KINDS[kind], Path())]
    first_lines = {name: path.read_text().partition("\n")[0] for name, path in configs().items()}
    return [Choice(name, line.removeprefix("#").strip()) for name, line in first_lines.items()]


def table(rows: list[Choice], width: int | None) -> list[str]:
    """A line for each class: its name, the file if it is the user's, and what it is.

    Args:
        rows: The classes.
        width: Columns that lines are cut to; None to keep them whole.
    """
    column = max(len(row.name) for row in rows)
    lines = [f"{row.name:<{column}}  {f'[{row.file}] ' * bool(row.file)}{row.line}".rstrip() for row in rows]
    return [line if width is None or len(line) <= width else f"{line[: width - 1]}…" for line in lines]
