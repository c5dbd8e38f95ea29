from functools import cached_property
from typing import Any

import lightning.pytorch as pl
import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback

from pfl_lightning import files
from pfl_lightning.callbacks.board import boards
from pfl_lightning.callbacks.monitors import quantity_of
from pfl_lightning.callbacks.run_folder import continues, folder_of
from pfl_lightning.cli.loggers import tell_settings
from pfl_lightning.data import FederatedDataModule, federated
from pfl_lightning.quantity import HEADLINED, headline


class SavedConfig(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder and the same settings into every checkpoint."""

    fingerprint = ""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any) -> None:
        config = config.clone()
        config.pop("ckpt_path", None)  # running the saved file starts a new run
        super().__init__(parser, config, **kwargs)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Do nothing yet: Lightning would write before it is known whether the run can start."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file of a new run before its first evaluation."""
        if trainer.ckpt_path is None:
            self._write(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file of a run that resumes when all else can."""
        if trainer.ckpt_path is not None:
            self._write(trainer)

    @cached_property
    def text(self) -> str:
        """The settings as a file has them; it takes a while to write them down, and they stay the same."""
        written: str = self.parser.dump(self.config, skip_unset=False)
        return written

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings as plain values."""
        settings: dict[str, Any] = yaml.safe_load(self.text)
        return settings

    def _write(self, trainer: pl.Trainer) -> None:
        folder, is_new = folder_of(trainer), not continues(trainer)
        if trainer.is_global_zero:
            files.write_text(self.text, folder / "config.yaml")
            tell_settings(trainer.loggers, self.settings, folder, is_new)
            for board in boards(trainer):
                board.show_config(self.text, trainer.global_step)
                if is_new:
                    board.show_row(self.settings, results_of(federated(trainer)))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings as plain values, and the fingerprint of the data, which is computed once."""
        self.fingerprint = self.fingerprint or federated(trainer).fingerprint()
        checkpoint["fingerprint"] = self.fingerprint
        checkpoint["config"] = self.settings


def results_of(data: FederatedDataModule) -> list[str]:
    """Names of the results of a run beside its settings: the headlines, test first, and simulated seconds."""
    splits = [split for split in reversed(HEADLINED) if split in data.eval_splits]
    return [*(headline(split, quantity_of(data)) for split in splits), "time/total"]
