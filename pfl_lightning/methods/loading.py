import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

from jsonargparse import ArgumentError

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.federation.checkpoints import Content, read_checkpoint, refusal
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.methods.method import Method
from pfl_lightning.strict import StrictParser


def load_method(path: str | PathLike[str], **arguments: Any) -> Method:
    """Load a method from a checkpoint, with its own class, ready to be evaluated or trained further.

    Of the classes that a checkpoint names, only those are called that are methods, or of the types that a method's
    arguments have. To look a class up, the module that it names is imported.

    Args:
        path: The checkpoint.
        arguments: Constructor arguments that the checkpoint lacks: ``network``, ``loss``, ``lr_schedule``,
            ``server_optimizer``, ``aggregator`` and ``topology``, unless these are the defaults. A run of ``pfl fit``
            needs only its ``network``, with its options, and only if that is a function of your own.

    Raises:
        PflError: If the checkpoint is damaged, or something in it is missing or wrong.
    """
    checkpoint = read_checkpoint(path)
    method = _from_settings(checkpoint, arguments) if "config" in checkpoint else _from_arguments(checkpoint, arguments)
    method.on_load_checkpoint(checkpoint)
    return method


def _from_settings(checkpoint: Content, arguments: dict[str, Any]) -> Method:
    """Make the method as the command line did, but for a network that is given."""
    model = checkpoint["config"]["model"]
    replaced = {"network"} & arguments.keys()
    options = {name: value for name, value in model["init_args"].items() if name not in replaced}
    parser = StrictParser(exit_on_error=False)
    parser.add_subclass_arguments(Method, "model", fail_untyped=False)
    with _refusing(checkpoint, "config.model"):
        settings = parser.parse_object({"model": {**model, "init_args": options}})
        method: Method = parser.instantiate(settings).model
    method.make_network = arguments.get("network", method.make_network)
    return method


def _from_arguments(checkpoint: Content, arguments: dict[str, Any]) -> Method:
    """Make the method from the hyperparameters that Lightning has saved."""
    kind = _method_class(checkpoint)
    saved = _arguments(checkpoint, "hyper_parameters", kind, checkpoint["hyper_parameters"])
    method = kind(**{**saved, **arguments})
    method.sparsity = Sparsity(**_arguments(checkpoint, "sparsity", Sparsity, checkpoint.get("sparsity", {})))
    return method


def _method_class(checkpoint: Content) -> type[Method]:
    module, _, name = checkpoint["method"].rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise refusal(checkpoint, f"method: cannot find the class ({one_line(error)})") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise refusal(checkpoint, f"method: {checkpoint['method']} is not possible; allowed: a subclass of Method")
    return kind


def _arguments(checkpoint: Content, entry: str, kind: type, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The saved arguments that a class has, each of the type that it has there; a subclass may fix some of its base."""
    parser = StrictParser(exit_on_error=False)
    known = {name: saved[name] for name in parser.add_class_arguments(kind) if name in saved}
    with _refusing(checkpoint, entry):
        return dict(parser.parse_object(known, defaults=False))


@contextmanager
def _refusing(checkpoint: Content, entry: str) -> Iterator[None]:
    """Say in one line what the parser, or a constructor that it calls, has rejected."""
    try:
        yield
    except (PflError, ArgumentError, TypeError, ValueError) as error:
        raise refusal(checkpoint, f"{entry}: {one_line(error)}") from error
