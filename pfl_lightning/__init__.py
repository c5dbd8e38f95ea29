"""Personalized federated learning research on PyTorch Lightning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pfl_lightning.errors import PflError

if TYPE_CHECKING:
    from pfl_lightning.report import clients, results
    from pfl_lightning.runs.experiment import Experiment
    from pfl_lightning.runs.resume import load_method
    from pfl_lightning.runs.run import Run

__version__ = "0.1.0"
__all__ = ["Experiment", "PflError", "Run", "__version__", "clients", "load_method", "results"]

_PLACES = {
    "Experiment": "runs.experiment",
    **dict.fromkeys(("clients", "results"), "report"),
    "load_method": "runs.resume",
    "Run": "runs.run",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: the whole package takes seconds."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
