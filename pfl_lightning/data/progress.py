from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.status import Status

CONSOLE = Console(stderr=True)  # one for all bars: rich stacks those that are shown at the same time
BRIEF = 1.0  # seconds of work before it is shown
DRAWN = 2  # times a second


def on_terminal() -> dict[str, Any]:
    """Options of rich's progress bars: show the bar on stderr, if that is a terminal."""
    # without this, rich would print an empty line if there is no terminal
    return {"console": CONSOLE, "disable": not CONSOLE.is_terminal}


def loading(name: str) -> Status:
    """A context that shows on a terminal that a data set is being loaded.

    Args:
        name: Name of the data set.
    """
    return CONSOLE.status(f"Loading {name}")


def clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    Example:
        >>> clock(75.3), clock(3675), clock(90_000)
        ('01:15', '1:01:15', '1 day, 1:00:00')
    """
    words = str(timedelta(seconds=int(seconds)))
    return words.removeprefix("0:")
