from typing import Any

import lightning.pytorch as pl
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback

from pfl_lightning import files
from pfl_lightning.callbacks.board import boards
from pfl_lightning.callbacks.monitors import quantity_of
from pfl_lightning.callbacks.run_folder import continues, folder_of
from pfl_lightning.cli.loggers import tell_settings
from pfl_lightning.cli.parser import plain
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

    def _write(self, trainer: pl.Trainer) -> None:
        folder, is_new = folder_of(trainer), not continues(trainer)
        if trainer.is_global_zero:
            text, settings = self.parser.dump(self.config, skip_unset=False), plain(self.parser, self.config)
            files.write_text(text, folder / "config.yaml")
            tell_settings(trainer.loggers, settings, folder, is_new)
            for board in boards(trainer):
                board.show_config(text, trainer.global_step)
                if is_new:
                    board.show_row(settings, results_of(federated(trainer)))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings as plain values, and the fingerprint of the data, which is computed once."""
        self.fingerprint = self.fingerprint or federated(trainer).fingerprint()
        checkpoint["fingerprint"] = self.fingerprint
        checkpoint["config"] = plain(self.parser, self.config)


def results_of(data: FederatedDataModule) -> list[str]:
    """Names of the results of a run beside its settings: the headlines, test first, and simulated seconds."""
    splits = [split for split in reversed(HEADLINED) if split in data.judged_splits]
    return [*(headline(split, quantity_of(data)) for split in splits), "time/total"]
