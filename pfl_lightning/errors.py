"""The exception that the command line shows as a single clear line, what shortens others, and warnings to ignore."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

NOISE = (  # warnings of Lightning and torch about themselves
    r".*isinstance\(treespec, LeafSpec\).*",
    "There is a performance drop because we have not yet implemented the batching rule",
)
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "size calculation overflowed")  # as torch says it


class PflError(Exception):
    """An error that the user can fix; the message names the option, its value and what is allowed."""


class MachineError(PflError):
    """What a full disk or another process stands in the way of: the same command can succeed later, with code 75."""


class SettingsError(PflError):
    """Settings that are wrong whatever the data; the command line then ends with code 2."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was caused by, innermost last; each once, since causes may form a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def cause_of(error: BaseException) -> PflError | None:
    """The ``PflError`` that an error is or was caused by; the parser wraps what constructors raise."""
    return next((cause for cause in causes(error) if isinstance(cause, PflError)), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory; torch raises a plain RuntimeError with one of several messages."""
    message = str(error)
    is_torchs = any(words in message for words in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_torchs)


def one_line(error: BaseException) -> str:
    """Message of an exception on one line, without colours; its class name if the message is empty."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", str(error)).split()) or type(error).__name__


def printable(text: str) -> str:
    r"""Text in which what a terminal would obey, or could not show, is written out.

    Examples:
        >>> printable("runs/\x1b[31mred")
        'runs/\\x1b[31mred'
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


def number_of(client: str, numbers: Mapping[str, int], option: str) -> int:
    """The number of a client.

    Args:
        client: Its name.
        numbers: The numbers of all clients by their names, in rising order.
        option: What an error begins with.

    Raises:
        PflError: If there is no such client.
    """
    if client not in numbers:
        names = [*numbers]
        raise PflError(f"{option}: {client} is no client{nearest(client, names)}; allowed: {names[0]} to {names[-1]}")
    return numbers[client]


def nearest(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """A question for the name that is part of a wrong one, or most like it, in any case; empty if none is."""
    by_lower_case = {choice.lower(): choice for choice in names}
    parts = [lower for lower in by_lower_case if lower.rpartition(".")[2] == name.lower()]
    parts = parts or [lower for lower in by_lower_case if lower in name.lower().split("_")]
    matches = parts or get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower_case[matches[0]]}?" if matches else ""
