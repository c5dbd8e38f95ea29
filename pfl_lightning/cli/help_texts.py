"""The short help of fit, validate and test: files of text, which are read without importing any library."""

from pathlib import Path


def help_text(command: str) -> str:
    """The short help of fit, validate and test: the few options that most runs need; empty for other commands."""
    folder = Path(__file__).with_name("help")
    if command == "fit":
        return (folder / "fit.txt").read_text()
    split = {"validate": "validation", "test": "test"}.get(command)
    return (folder / "evaluate.txt").read_text().format(command=command, split=split) if split else ""


def usage(command: str) -> str:
    """The first line of the short help of fit, validate and test."""
    return help_text(command).partition("\n")[0].removeprefix("usage: ")
