"""Warns authors of methods about functions that are never called, most likely hooks with a misspelled name."""

import difflib
import inspect
import warnings
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

HOOKS = (
    *(
        "initial_state",
        "select_clients",
        "local_update",
        "sample_losses",
        "server_update",
        "count_traffic",
        "advance_clock",
    ),
    *("eval_models", "eval_model", "common_body"),
)


def warn_of_unused(kind: type, base: type) -> None:
    """Warn about public functions and properties that override nothing and that the class itself does not use.

    Args:
        kind: The class to check.
        base: The class with the hooks; the code of its own base classes is not searched for uses.
    """
    family = [ancestor for ancestor in kind.__mro__ if issubclass(ancestor, base)]
    used = {name for ancestor in family for member in vars(ancestor).values() for name in _names_in(member)}
    inherited = {name for ancestor in kind.__mro__[1:] for name in vars(ancestor)}
    for name, member in vars(kind).items():
        is_function = isinstance(member, (FunctionType, property))
        if is_function and not name.startswith("_") and name not in used | inherited:
            near = difflib.get_close_matches(name, HOOKS, n=1) or [hook for hook in HOOKS if name in hook]
            hint = f"did you mean {near[0]}?" if near else f"hooks are {', '.join(HOOKS)}; start other names with _"
            warnings.warn(f"{kind.__name__}.{name} is never called; {hint}", stacklevel=3)


def _names_in(member: Any) -> Iterator[str]:
    """The names that a function or property refers to."""
    function = member.fget if isinstance(member, property) else member
    function = inspect.unwrap(function) if callable(function) else function
    codes = [function.__code__] if isinstance(function, FunctionType) else []
    while codes:
        code = codes.pop()
        yield from code.co_names
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
