"""Nested settings, as in ``config.yaml``."""

from collections.abc import Iterator, Mapping
from typing import Any

DOUBLING = "Doubling"  # how the names of callbacks for stage doubling end


def flat(settings: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested settings by their keys, such as ``model.lr``.

    Args:
        settings: Mappings within mappings, or a single value.
        key: Key of all of them.

    Yields:
        Key and value of each leaf.
    """
    if isinstance(settings, Mapping):
        for name, inner in settings.items():
            yield from flat(inner, f"{key}.{name}".lstrip("."))
    else:
        yield key, settings
