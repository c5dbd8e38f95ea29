from typing import Any

from rich.console import Console
from rich.status import Status

CONSOLE = Console(stderr=True)  # one for all bars: rich stacks those that are shown at the same time


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
