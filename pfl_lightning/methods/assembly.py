from __future__ import annotations

from typing import TYPE_CHECKING

from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError

if TYPE_CHECKING:
    from pfl_lightning.methods.base import Method


def assemble(method: Method, data: FederatedDataModule) -> None:
    """Build a method for a data set, and refuse what does not go together.

    Args:
        method: The method.
        data: The data set, after its ``setup``.

    Raises:
        PflError: If the network does not take the inputs, or clients that never train would be judged by parts that
            they keep.
    """
    name = type(method).__name__
    if data.test_clients and method.keeps != "nothing":
        raise PflError(f"data.test_clients: clients that never train have no part of their own to keep with {name}")
    if data.test_clients:
        method.eval_epochs = 0  # they have nothing to refit on
    if not hasattr(method, "clients"):  # built before, and pretrained vectors may take seconds to read
        method.build(data.input_shape, data.num_classes, data.num_clients, data.seed, data.pretrained())
    if method.network.takes != data.inputs:
        raise PflError(
            f"model.network: {type(method.network).__name__} takes {method.network.takes}, {type(data).__name__} has "
            f"{data.inputs}; configs/data names a network that suits"
        )
