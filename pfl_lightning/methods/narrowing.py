import lightning.pytorch as pl

from pfl_lightning.errors import PflError
from pfl_lightning.methods.base import Method


def method_of(module: pl.LightningModule) -> Method:
    """Narrow the module that Lightning passes to a callback to ``Method``.

    Raises:
        PflError: If it is another kind of module.
    """
    if not isinstance(module, Method):
        raise PflError(f"model: {type(module).__name__} is not possible with these callbacks; allowed: a Method")
    return module
