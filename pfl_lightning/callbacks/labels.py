"""How the tables and figures of reports name a run: its method says so, and ``label.yaml`` tells the reports."""

import sys
from typing import Any

import lightning.pytorch as pl

from pfl_lightning.callbacks.doubling import Doubling
from pfl_lightning.callbacks.evaluation import callbacks_of
from pfl_lightning.methods import method_of
from pfl_lightning.objects import import_object
from pfl_lightning.report.run_files import Label
from pfl_lightning.settings.values import class_name, named_callbacks


def label_of(trainer: pl.Trainer) -> Label:
    """The label of a run."""
    method = method_of(trainer.lightning_module)
    doubling = next((type(c).__name__ for c in callbacks_of(trainer, pl.Callback) if isinstance(c, Doubling)), None)
    name = method.doubled_name if doubling else method.display_name
    suffixes = dict(method.suffixes)
    return Label(method.display_name, name, doubling, suffixes, method.is_baseline, method.task.score)


def is_doubling(callback: Any) -> bool:
    """Whether a callback, as settings have it, does stage doubling; a class that nothing has imported does not."""
    module, _, name = str(callback["class_path"]).rpartition(".")
    value = getattr(sys.modules.get(module), name, None)
    return isinstance(value, type) and issubclass(value, Doubling)


def method_name(settings: Any) -> str:
    """Name of a run's method, such as ``LG-FedAvg``, or ``FedRep-SRPFL`` for FedRep with stage doubling.

    Args:
        settings: All settings of the run, as mappings or as the parser's namespaces.
    """
    method = import_object(settings["model"]["class_path"])
    callbacks = named_callbacks(settings["trainer"].get("callbacks"))
    name = method.doubled_name if any(is_doubling(callback) for _, callback in callbacks) else method.display_name
    return str(name)


def run_name(settings: Any) -> str:
    """Method and data set of a run, such as ``FedRep-SRPFL-Digits``: the name of the folder of its versions.

    Args:
        settings: All settings of the run, as mappings or as the parser's namespaces.
    """
    return f"{method_name(settings)}-{class_name(settings['data']['class_path'])}".replace(" ", "")
