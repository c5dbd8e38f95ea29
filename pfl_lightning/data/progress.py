from typing import TypedDict

from rich.console import Console


class Bar(TypedDict):
    """Options of rich's progress bars: where to show the bar, and whether to hide it."""

    console: Console
    disable: bool


def on_terminal() -> Bar:
    """Show the bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    # without this, rich would print an empty line if there is no terminal
    return {"console": console, "disable": not console.is_terminal}
