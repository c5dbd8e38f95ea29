"""The short help of commands: files of text, which are read without importing any library."""

from pathlib import Path


def help_text(command: str) -> str:
    """The short help of a command: the options that most runs need, or all that there are; empty if it has none."""
    split = {"validate": "validation", "test": "test"}.get(command)
    file = Path(__file__).with_name("help") / f"{'evaluate' if split else command}.txt"
    text = file.read_text() if file.is_file() else ""
    return text.format(command=command, split=split) if split else text


def usage(command: str) -> str:
    """The first line of the short help of fit, validate and test."""
    return help_text(command).partition("\n")[0].removeprefix("usage: ")
