import sys
from collections.abc import Callable
from functools import partial

from pfl_lightning.cli.commands import COMMANDS, answer, is_quick


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: Arguments; those of the process by default.

    Raises:
        SystemExit: With code 2 for a wrong command line, 1 for errors found later, 130, 138 or 143 after a signal.
    """
    prepared(args)()


def prepared(args: list[str] | None = None) -> Callable[[], None]:
    """Import what a command line needs, which takes seconds for some commands.

    Args:
        args: Arguments; those of the process by default.

    Returns:
        What runs it.
    """
    words = sys.argv[1:] if args is None else args
    if is_quick(words):
        return partial(answer, words)
    from pfl_lightning.cli.running import run

    return partial(run, COMMANDS[words[0]].load(), args)
