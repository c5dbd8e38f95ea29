"""Reading of configs: ``config.yaml``, and the settings in a checkpoint.

A class is given by ``class_path`` and ``init_args``. Callbacks are identified by the names of their classes.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

Settings = Mapping[str, Any]

# which settings do not matter: a run keeps all others while it trains, also those of a section that is new
SAME_NUMBERS = {"data.root", "data.file", "model.chunk_size", "checkpoint.every"}  # for any of its results
# for what it trains and logs
AFTER_TRAINING = {f"data.new_{name}" for name in ("clients", "samples", "head_epochs", "head_steps")}
LOGGED = {"percentile_errors"}  # sections that say what is logged, whatever it trains
OWN_PACKAGE = __name__.partition(".")[0] + "."


def class_name(class_path: str) -> str:
    """The last part of a class path, such as ``FedRep`` of ``pfl_lightning.methods.FedRep``."""
    return class_path.rpartition(".")[2]


def shown_class(class_path: str) -> str:
    """Name of a class for display: without its path if it is in this package."""
    return class_name(class_path) if class_path.startswith(OWN_PACKAGE) else class_path


def named_callbacks(callbacks: Any) -> list[tuple[str, Any]]:
    """Callbacks with the names of their classes.

    Args:
        callbacks: The setting ``trainer.callbacks``: none, one, or a list.
    """
    several = [callbacks] if callbacks and "class_path" in callbacks else callbacks or ()
    return [(class_name(callback["class_path"]), callback) for callback in several]


def may_change(key: str) -> bool:
    """Whether a setting may be another one when a run resumes: learning rates may, whose names end with ``lr``.

    Example:
        >>> may_change("model.head_lr"), may_change("model.local.lr_decay"), may_change("model.color")
        (True, False, False)
    """
    return key in SAME_NUMBERS | AFTER_TRAINING or re.split("[._]", key)[-1] == "lr"


def outermost(keys: Collection[str]) -> list[str]:
    """Keys without the options of a class that is one of them: another class has others."""
    return [key for key in keys if not any(key.startswith(f"{outer}.") for outer in keys)]


def changes(before: Settings, after: Settings) -> dict[str, tuple[Any, Any]]:
    """What each setting was and is that is not the same in two flat settings, in the order of the keys."""
    keys = sorted(before.keys() | after.keys())
    return {key: (was, now) for key in keys if (was := before.get(key)) != (now := after.get(key))}


def flat(settings: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested settings to the keys of the command line, such as ``model.local.lr``.

    Args:
        settings: Nested mappings, or a single value.
        key: Prefix of all keys.

    Yields:
        Key and value of each leaf; the key of a class itself has its path, and its options are below that key.
    """
    if isinstance(settings, Mapping):
        for name, inner in settings.items():
            yield from flat(inner, key if name in ("class_path", "init_args") else f"{key}.{name}".lstrip("."))
    else:
        yield key, settings
