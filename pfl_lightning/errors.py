"""The one exception that the command line turns into a single clear line, and what makes a line of the others."""


class PflError(Exception):
    """Something that the user can mend; the message names the key, the value and what is allowed."""


def one_line(error: BaseException) -> str:
    """What an exception says, on one line; its name if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
