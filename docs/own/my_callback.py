"""A callback and a logger of one's own, for docs/own/callback.md and docs/own/logger.md."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.nn.utils import parameters_to_vector


class DriftTracker(pl.Callback):
    """Logs how far the shared model has moved from where it started, and the largest step so far."""

    def __init__(self, norm: float = 2.0) -> None:
        self.norm, self.largest = norm, 0.0
        self.start: Tensor | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember the start, unless a checkpoint has restored it."""
        if self.start is None:
            self.start = flat(pl_module)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Remember the model before the round."""
        self.before = flat(pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Log how far it has moved."""
        now = flat(pl_module)
        self.largest = max(self.largest, float((now - self.before).norm(self.norm)))
        pl_module.log("drift/start", (now - self.start).norm(self.norm))
        pl_module.log("drift/largest_step", self.largest)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"start": self.start, "largest": self.largest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back from a checkpoint."""
        self.start, self.largest = state_dict["start"], state_dict["largest"]


def flat(method: pl.LightningModule) -> Tensor:
    """All parameters of the shared model, one after another."""
    return parameters_to_vector(method.network.parameters()).detach()


class TextLogger(Logger):
    """Writes what it is told into a text file."""

    name, version = "text", None

    def __init__(self, save_dir: str = ".") -> None:
        super().__init__()
        self.file = Path(save_dir) / "log.txt"

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Take the settings, by their names on the command line."""
        self.write(f"{len(params)} settings, model.local.lr is {params['model.local.lr']}")

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Take the values of a round."""
        self.write(f"round {step}: {', '.join(sorted(metrics))}")

    def write(self, line: str) -> None:
        """Add a line to the file."""
        with self.file.open("a") as file:
            file.write(line + "\n")
