import importlib
from os import PathLike
from typing import Any

import torch
from jsonargparse import ArgumentParser

from pfl_lightning.methods.base import Method
from pfl_lightning.methods.sparsity import Sparsity
from pfl_lightning.strict import StrictParser


def load_method(path: str | PathLike[str], **arguments: Any) -> Method:
    """Load a method from a checkpoint, with its own class, ready to be evaluated or trained further.

    Args:
        path: The checkpoint.
        arguments: Constructor arguments that the checkpoint lacks: ``network``, ``server_optimizer``, ``sums`` and
            ``topology``, unless they are the defaults. Checkpoints of ``pfl fit`` need none.
    """
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    if "config" in checkpoint:
        parser = StrictParser()
        parser.add_subclass_arguments(Method, "model")
        method: Method = parser.instantiate(parser.parse_object({"model": checkpoint["config"]["model"]})).model
    else:
        module, _, name = checkpoint["method"].rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        offered = ArgumentParser().add_class_arguments(kind)  # a subclass may fix arguments of its base
        known = {name: value for name, value in checkpoint["hyper_parameters"].items() if name in offered}
        method = kind(**{**known, **arguments})
        method.sparsity = Sparsity(**checkpoint.get("sparsity", {}))  # older checkpoints have none
    method.on_load_checkpoint(checkpoint)
    method.load_state_dict(checkpoint["state_dict"])
    return method
