import signal
import sys

from lightning.fabric.utilities.exceptions import MisconfigurationException

from pfl_lightning.cli.compare import compare_command
from pfl_lightning.cli.complaints import explain
from pfl_lightning.cli.console import complain, debugging, keep_quiet
from pfl_lightning.cli.data import data_command
from pfl_lightning.cli.fit import PflCLI
from pfl_lightning.cli.parser import CHOICES
from pfl_lightning.cli.sweep import sweep_command
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.memory import is_exhausted, keep_freed_memory

EXPECTED = PflError, ValueError, MisconfigurationException, OSError, ModuleNotFoundError, MemoryError, RuntimeError
COMMANDS = {"compare": compare_command, "data": data_command, "sweep": sweep_command}  # PflCLI has the others


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: Arguments; those of the process by default.

    Raises:
        SystemExit: With code 2 for a wrong command line, 1 for errors found later, 130 or 143 after a signal.
    """
    keep_quiet()
    sys.path.insert(0, "")  # a method of the user's own lies in the working folder
    words = sys.argv[1:] if args is None else args
    try:
        if words and words[0] in COMMANDS:
            COMMANDS[words[0]](words[1:])
        else:
            keep_freed_memory()
            PflCLI(args)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except EXPECTED as error:
        if debugging() or (type(error) is RuntimeError and not is_exhausted(error)):
            raise
        complain(reason(error))
        raise SystemExit(1) from None


def reason(error: BaseException) -> str:
    """What is wrong, in a line, for an error that the user can fix."""
    if known := cause_of(error):
        return str(known)
    more = "(PFL_DEBUG=1 shows the traceback)"
    if is_exhausted(error):
        return f"not enough memory: {one_line(error)}; try fewer clients or a smaller network {more}"
    return f"{explain(str(error), (), CHOICES)} {more}"


def cause_of(error: BaseException | None) -> PflError | None:
    """The ``PflError`` that an error is or was caused by; the parser wraps what constructors raise."""
    while error is not None and not isinstance(error, PflError):
        error = error.__cause__ or error.__context__
    return error
