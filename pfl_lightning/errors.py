"""The exception that the command line shows as a single clear line, and a function that shortens others to a line."""


class PflError(Exception):
    """An error that the user can fix; the message names the option, its value and what is allowed."""


def one_line(error: BaseException) -> str:
    """Message of an exception on one line; its class name if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__
