"""The one exception that the command line turns into a single clear line."""


class PflError(Exception):
    """Something that the user can mend; the message names the key, the value and what is allowed."""
