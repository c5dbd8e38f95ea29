"""Backends, which run the same computation for many clients: one at a time, or many at once."""

from pfl_lightning.client.backends.base import Backend, ClientFunction
from pfl_lightning.client.backends.batched import Batched
from pfl_lightning.client.backends.linear_stack import LinearStack
from pfl_lightning.client.backends.sequential import Sequential

__all__ = ["Backend", "Batched", "ClientFunction", "LinearStack", "Sequential"]
