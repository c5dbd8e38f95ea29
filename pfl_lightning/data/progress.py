from typing import TypedDict

from rich.console import Console


class Bar(TypedDict):
    """Options of rich's progress bars: where a bar goes, and whether it is left out."""

    console: Console
    disable: bool


def on_terminal() -> Bar:
    """A bar on stderr, and only if that is a terminal."""
    console = Console(stderr=True)
    # rich would still end the bar with an empty line where there is no terminal
    return {"console": console, "disable": not console.is_terminal}
