"""What the command line prints: results on stdout, notes, warnings and errors as single lines on stderr."""

import logging
import os
import sys
import warnings

from rich.console import Console

from pfl_lightning.errors import NOISE, printable

LONGEST = 900  # letters of a line
CONSOLE = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def debugging() -> bool:
    """Whether the user wants tracebacks."""
    return bool(os.environ.get("PFL_DEBUG"))


def silence_lightning() -> None:
    """Silence Lightning's messages about itself; its warnings about the run become single lines."""
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    warnings.showwarning = lambda message, *_, **__: say_once(str(message), "warning")
    warnings.filterwarnings("ignore", message="It is recommended to use .self.log")  # all processes log the same
    if not debugging():
        logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        logging.getLogger("lightning.pytorch.loggers.mlflow").setLevel(logging.ERROR)  # of what it makes


def say(message: str, kind: str = "error") -> None:
    """Print one line on stderr, of which the middle is left out if it is longer than anybody reads."""
    if len(message) > LONGEST:
        message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
    sys.stderr.write(f"pfl: {kind}: {printable(message)}\n")


def show(text: str) -> None:
    """Print a result on stdout, as it is; long lines are not wrapped."""
    CONSOLE.print(printable(text))


def say_once(message: str, kind: str = "error") -> None:
    """Print one line on stderr, in the first process of a run."""
    if "lightning" in sys.modules:  # without it there is one process
        from lightning.pytorch.utilities import rank_zero_only

        rank_zero_only(say)(message, kind)
    else:
        say(message, kind)
