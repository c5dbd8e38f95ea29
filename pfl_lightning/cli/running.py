"""Runs a command, and ends the process as a command line should: errors are lines, and codes say what happened."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfl_lightning.cli.console import debugging, say, say_once, silence_lightning
from pfl_lightning.errors import MachineError, PflError, SettingsError, cause_of, is_out_of_memory, one_line
from pfl_lightning.settings.messages import TRACEBACK_HINT, blame, explain
from pfl_lightning.settings.parser import strict_parsing

EXPECTED = PflError, ValueError, OSError, ModuleNotFoundError, MemoryError, RuntimeError


@strict_parsing()
def run(command: Callable[[list[str]], Any], words: list[str]) -> None:
    """Run a command.

    Args:
        command: Its function.
        words: The words after its name.

    Raises:
        SystemExit: With code 2 for a wrong command line, 1 for errors found later, 75 for those of the machine, such as
            a full disk, and 129, 130, 138 or 143 after a signal.
    """
    silence_lightning()
    try:
        # a method of the user's own lies in the working folder, which the parser leaves to read a settings file
        sys.path.insert(0, str(Path.cwd()))
        command(words)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except SettingsError as error:
        if debugging():
            raise
        say_once(str(error))
        raise SystemExit(2) from error
    except Exception as error:
        if not is_expected(error):
            raise
        say(f"{_rank_prefix()}{reason(error)}")
        raise SystemExit(os.EX_TEMPFAIL if isinstance(cause_of(error), MachineError) else 1) from None


def is_expected(error: Exception) -> bool:
    """Whether the user gets a line for an error, and no traceback."""
    is_lightnings = type(error).__name__ == "MisconfigurationException"  # whose import takes seconds
    is_explained = is_out_of_memory(error) or lost_process(error)
    is_bug = not isinstance(error, EXPECTED) or (type(error) is RuntimeError and not is_explained)
    return not debugging() and (is_lightnings or not is_bug or bool(blame(error)))


def reason(error: Exception) -> str:
    """What is wrong, in a line, for an error that the user can fix."""
    if cause := cause_of(error):
        return str(cause)
    if is_out_of_memory(error):
        return f"not enough memory: {one_line(error)}; try fewer clients or a smaller network {TRACEBACK_HINT}"
    if lost := lost_process(error):
        what = "another process of this run has ended, or its machine does not answer"
        return f"{what} ({lost}); add --ckpt_path last to the command to continue"
    return blame(error) or f"{explain(str(error))} {TRACEBACK_HINT}"


def lost_process(error: Exception) -> str:
    """What torch says if another process of the run is gone; empty if that is not why."""
    if "torch" not in sys.modules:
        return ""
    from pfl_lightning import processes

    if not processes.is_lost(error):
        return ""
    reason, _, _ = one_line(error).partition(". ")
    return re.sub(r"^\[\S+/gloo/\S+\] ", "", reason)  # the line of gloo's code


def _rank_prefix() -> str:
    """Which process has failed, if there are several."""
    if "torch" not in sys.modules:
        return ""
    from pfl_lightning import processes

    return f"rank {rank}: " if (rank := processes.rank()) else ""
