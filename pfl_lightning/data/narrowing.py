import lightning.pytorch as pl

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.errors import PflError


def federated(trainer: pl.Trainer) -> FederatedDataModule:
    """The trainer's data module, narrowed to ``FederatedDataModule``.

    Args:
        trainer: A running trainer.

    Raises:
        PflError: If the trainer has another kind of data.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        raise PflError(f"trainer: {type(data).__name__} is not possible as data; allowed: a FederatedDataModule")
    return data
