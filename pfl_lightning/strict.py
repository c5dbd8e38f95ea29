"""A parser of settings that a stranger may have written: they name classes to import, and call nothing else."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace, Unset, set_parsing_settings

# a null that was given differs from an option that was not given, so the parser checks it against the option's type;
# where a type admits anything, a class stays a mere mapping
set_parsing_settings(unset_sentinel=True, instantiate_subclass_spec_in_any=False)


_dumping = False


@contextmanager
def _plain_nulls() -> Iterator[None]:
    """While settings are dumped, a null is nothing to convert: some types would make the word None of it."""
    global _dumping
    outer, _dumping = _dumping, True
    set_parsing_settings(unset_sentinel=False)
    try:
        yield
    finally:
        _dumping = outer
        set_parsing_settings(unset_sentinel=not outer)


class StrictParser(ArgumentParser):
    """Refuses null for an option that is never null, and functions in place of classes."""

    def parse_args(self, args: Any = None, *others: Any, **kwargs: Any) -> Any:
        """Parse arguments; a null for an option of an option arrives here under its Python name."""
        words = sys.argv[1:] if args is None else args
        return super().parse_args([re.sub("=None$", "=null", word) for word in words], *others, **kwargs)

    def dump(self, namespace: Namespace, *others: Any, **kwargs: Any) -> str:
        """Settings as text; an option that has no value, though it needs one, is null."""
        given = namespace.clone()
        for key in [key for key, value in given.items() if value is Unset]:
            given[key] = None
        with _plain_nulls():
            text: str = super().dump(given, *others, **kwargs)
        return text

    def add_subclass_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Add the options of a class to choose, which must not be null."""
        super().add_subclass_arguments(*args, **{"default": Unset, **kwargs})

    def validate(self, namespace: Namespace, *others: Any, **kwargs: Any) -> None:
        """Check settings against the types of the options; a function is only possible as the default of its option.

        Raises:
            TypeError: If a value is not possible.
        """
        super().validate(namespace, *others, **kwargs)
        for key, value in namespace.items():
            if callable(value) and not isinstance(value, type) and value != self.get_defaults().get(key):
                raise TypeError(f'Parser key "{key}": Import path {_named(value)} is not a subclass')

    def add_function_arguments(self, function: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse what would be called though it is no class; the parser asks for the arguments of all it calls.

        Raises:
            ImportError: Always.
        """
        raise ImportError(f"Import path {_named(function)} is not a subclass")


def origin(given: Any) -> Any:
    """The class or function that a ``partial``, or a factory that the parser has made, calls; else what is given."""
    while isinstance(given, partial):
        given = next((argument for argument in reversed(given.args) if isinstance(argument, type)), given.func)
    return given


def import_path(given: Any) -> str | None:
    """The import path of a function, a class or a factory of its objects, or of the class of an object; or None."""
    return None if given is None else _named(origin(given))


def _named(value: Any) -> str:
    """A function, or an object that can be called, by its import path."""
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
