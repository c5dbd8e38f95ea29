"""What a method adds to a checkpoint, and how it is restored from it."""

from typing import Any

from pfl_lightning.federation.checkpoints import (
    FORMAT,
    Content,
    check_finite,
    check_like,
    check_optimizer_state,
    check_same,
    refusing,
    shape_of,
)
from pfl_lightning.federation.pretrained import leave_base_out, put_base_back
from pfl_lightning.objects import to_settings
from pfl_lightning.server import pack_tensors, unpack_tensors
from pfl_lightning.tree import constants


def save_method(method: Any, checkpoint: Content) -> None:
    """Add what builds a method again, what it has cost so far, and what clients keep; pack sparse models."""
    checkpoint["format"] = FORMAT
    checkpoint["model"] = to_settings(method)
    checkpoint["shape"] = method.built_for
    checkpoint["given"] = method.function_paths
    checkpoint["accounting"] = method.accounting.state_dict()
    for part in (method.cohort, method.versions, method.clients):
        part.save(checkpoint)
    leave_base_out(checkpoint, method.network)
    if method.packs:
        checkpoint["state_dict"] = pack_tensors(checkpoint["state_dict"])


def restore_method(method: Any, checkpoint: Content) -> None:
    """Restore everything but the optimizer; build the method, unless it is built.

    Raises:
        PflError: If an entry is missing or wrong, or of another method, network or data set.
    """
    with refusing(checkpoint):
        if not method.built_for:
            method.build(**shape_of(checkpoint))
        check_same(checkpoint, "shape", method.built_for)
        check_same(checkpoint, "given", method.function_paths)
        check_like(checkpoint, "accounting", checkpoint["accounting"], method.accounting.state_dict())
        method.accounting.load_state_dict(checkpoint["accounting"])
        method.cohort.load(checkpoint)
        method.versions.load(checkpoint)
        checkpoint["state_dict"] = unpack_tensors(checkpoint["state_dict"])
        check_finite(checkpoint, constants(method.network))
        name = min(method.engine.trainable)
        dtype = checkpoint["state_dict"][f"network.{name}"].dtype
        if dtype != method.network.get_parameter(name).dtype:
            networks = [architecture.network for architecture in method.architectures]
            for part in (*networks, method.clients, method.server, method.task):
                part.to(dtype)
        method.clients.load(checkpoint)
        put_base_back(checkpoint, method.network, method.pretrained, method.adapter, method.parts["head"])
        method.load_state_dict(checkpoint["state_dict"])
        check_optimizer_state(checkpoint, list(method.network.parameters()))
