"""A method that is made, trained and looked at again and again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from pfl_lightning.callbacks import EvaluateStartAndEnd, RoundCheckpoint
from pfl_lightning.contract.clients import UnequalClients
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.methods import Method
from pfl_lightning.runs.run_settings import TRAINER_DEFAULTS
from pfl_lightning.tree import Tree

LAST = "checkpoints/last.ckpt"


class ContractError(Exception):
    """What does not hold, and what to change."""


class Subject:
    """A method under test.

    Args:
        make: Makes it, with other options such as ``backend`` and ``chunk_size``.
        folder: Where its runs are.
        data: Makes the data that it trains on, with options such as ``num_clients``.
    """

    def __init__(
        self, make: Callable[..., Method], folder: Path, data: Callable[..., FederatedDataModule] = UnequalClients
    ) -> None:
        self.make = make
        self.folder = folder
        self.data = data

    def built(self, data: FederatedDataModule, **options: Any) -> Method:
        """A new method, built for a data set."""
        method = self.make(**options)
        data.setup("fit")
        method.build_for(data)
        return method

    def trained(self, rounds: int, data: FederatedDataModule | None = None, **options: Any) -> Method:
        """A new method after some rounds, in which nothing is evaluated or saved."""
        method = self.make(**options)
        self.fit(method, data or self.data(), rounds, bare=True)
        return method

    def fit(
        self, method: Method, data: FederatedDataModule, rounds: int, folder: str = "run", **options: Any
    ) -> pl.Trainer:
        """Train a method in a folder of this name; see ``fit``."""
        return fit(method, data, rounds, self.folder / folder, **options)


def fit(
    method: Method,
    data: FederatedDataModule,
    rounds: int,
    folder: Path,
    ckpt_path: Path | None = None,
    callbacks: Sequence[pl.Callback] = (),
    bare: bool = False,
    **trainer: Any,
) -> pl.Trainer:
    """Train a method on a CPU, and say nothing.

    Args:
        method: The method.
        data: What it trains on.
        rounds: Rounds in all.
        folder: The run's folder.
        ckpt_path: Checkpoint that it continues from.
        callbacks: Callbacks; checkpoints are saved in any case.
        bare: Nothing is evaluated or saved.
        trainer: Options of the trainer.
    """
    saves = any(isinstance(callback, RoundCheckpoint) for callback in callbacks)
    usual = [] if bare else [EvaluateStartAndEnd(), *([] if saves else [RoundCheckpoint()])]
    options: dict[str, Any] = {"limit_val_batches": 0, "enable_checkpointing": False} if bare else {}
    quiet = {"accelerator": "cpu", "logger": False, "val_check_interval": 2, "enable_progress_bar": False}
    own = {"max_steps": rounds, "default_root_dir": folder, "callbacks": [*callbacks, *usual]}
    made = pl.Trainer(**{**TRAINER_DEFAULTS, **quiet, **options, **own, **trainer})
    made.fit(method, data, ckpt_path=ckpt_path, weights_only=True)
    return made


def tensors(module: nn.Module) -> Tree:
    """Copies of all tensors of a module."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def furthest(one: nn.Module | Tree, other: nn.Module | Tree) -> tuple[float, str]:
    """The largest difference between a tensor of one module or tree and that of another, and the tensor's name.

    It is nan if one has a nan.
    """
    first, second = (each.state_dict() if isinstance(each, nn.Module) else each for each in (one, other))
    gaps = {name: float(gap(tensor, second[name])) for name, tensor in first.items()}
    name = max(gaps, key=lambda each: (gaps[each] != gaps[each], gaps[each]))
    return gaps[name], name


def gap(one: Tensor, other: Tensor) -> Tensor:
    """The largest difference between two tensors."""
    return (one.double() - other.double()).abs().max() if one.numel() else torch.zeros(())


def distance(one: nn.Module | Tree, other: nn.Module | Tree) -> float:
    """The largest difference between the tensors of two modules or trees; nan if one has a nan."""
    return furthest(one, other)[0]


@contextmanager
def float64() -> Iterator[None]:
    """Compute in float64 for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
