"""Reading of configs: ``config.yaml``, and the settings in a checkpoint.

A class is given by ``class_path`` and ``init_args``. Callbacks are identified by the names of their classes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Settings = Mapping[str, Any]

OWN_PACKAGE = __name__.partition(".")[0] + "."
PAPERS_NAMES = {
    "DPSGD": "D-PSGD",
    "DeltaFL": "Delta-FL",
    "HFMAML": "HF-MAML",
    "LGFedAvg": "LG-FedAvg",
    "PFedMe": "pFedMe",
    "PerFedAvg": "Per-FedAvg",
}
DOUBLED_NAMES = {"FedRep": "FedRep-SRPFL", "LGFedAvg": "LG-SRPFL", "FedAvg": "FLANP", "LinearFedRep": "LinearSRPFL"}


def class_name(class_path: str) -> str:
    """The last part of a class path, such as ``FedRep`` of ``pfl_lightning.methods.FedRep``."""
    return class_path.rpartition(".")[2]


def shown_class(class_path: str) -> str:
    """Name of a class for display: without its path if it is in this package."""
    return class_name(class_path) if class_path.startswith(OWN_PACKAGE) else class_path


def method_label(method: str, doubled: bool) -> str:
    """Name of a method as in its paper, such as ``LG-FedAvg``, or ``FedRep-SRPFL`` for FedRep with stage doubling.

    Args:
        method: Name of its class.
        doubled: Whether its runs begin with the fastest clients and double their number.
    """
    plain = PAPERS_NAMES.get(method, method)
    return DOUBLED_NAMES.get(method, f"{plain} + doubling") if doubled else plain


def label_of(settings: Any) -> str:
    """Name of a run's method; see ``method_label``.

    Args:
        settings: All settings of the run, as mappings or as the parser's namespaces.
    """
    doubled = any(is_doubling(name) for name, _ in named_callbacks(settings["trainer"].get("callbacks")))
    return method_label(class_name(settings["model"]["class_path"]), doubled)


def run_name(settings: Any) -> str:
    """Method and data set of a run, such as ``FedRep-SRPFL-Digits``: the name of the folder of its versions.

    Args:
        settings: All settings of the run, as mappings or as the parser's namespaces.
    """
    return f"{label_of(settings)}-{class_name(settings['data']['class_path'])}".replace(" ", "")


def named_callbacks(callbacks: Any) -> list[tuple[str, Any]]:
    """Callbacks with the names of their classes.

    Args:
        callbacks: The setting ``trainer.callbacks``: none, one, or a list.
    """
    several = [callbacks] if callbacks and "class_path" in callbacks else callbacks or ()
    return [(class_name(callback["class_path"]), callback) for callback in several]


def is_doubling(callback: str) -> bool:
    """Whether a callback class with this name does stage doubling."""
    return callback.endswith("Doubling")


def flat(settings: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested settings to the keys of the command line, such as ``model.lr``.

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
