from collections.abc import Mapping
from typing import Any


def plain_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the command line's range-checked numbers to plain ones, which load with ``weights_only=True``."""
    return {name: _plain(value) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    return next((kind(value) for kind in (bool, int, float) if isinstance(value, kind)), value)
