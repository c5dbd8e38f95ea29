"""Errors in a user's own file: where they are, in one line."""

import traceback
from pathlib import Path

from pfl_lightning.errors import one_line
from pfl_lightning.imports import is_user_file

MORE = "(PFL_DEBUG=1 shows the traceback)"


def blame(error: BaseException | None) -> str:
    """Where a file of the user's own has raised an error, or what it was caused by, or called what has.

    Returns:
        File, line and error, such as ``my_method.py, line 12, in local: KeyError: 'x'``; empty if no such file did.
    """
    while error is not None:
        places = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            places.append((error.filename or "", error.lineno, "<module>"))
        if own := [place for place in places if is_user_file(Path(place[0]))]:
            file, line, name = own[-1]
            where = "" if name == "<module>" else f", in {name}"
            kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            said = error.msg if isinstance(error, SyntaxError) else one_line(error)
            return f"{_shown(Path(file).resolve())}, line {line}{where}: {kind}{said}"
        error = error.__cause__ or error.__context__
    return ""


def _shown(file: Path) -> Path:
    """A file by its path from the working folder, if it is there."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
