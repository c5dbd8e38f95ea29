from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL
from pathlib import Path

from pfl_lightning.errors import PflError, one_line


@contextmanager
def reading(path: object, remedy: str, key: str = "data.root") -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into one line that names the file.

    Args:
        path: The file.
        remedy: What the user can do; ends the line.
        key: The option that led to the file.

    Raises:
        PflError: For every other exception.
    """
    try:
        if isinstance(path, Path) and path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(EINVAL, "no regular file")  # a pipe or a device, which may never end
        yield
    except PflError:
        raise
    except Exception as error:  # parsers of damaged files raise almost everything
        raise PflError(f"{key}: cannot read '{path}' ({_reason(error)}); {remedy}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
