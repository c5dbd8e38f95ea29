from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm


class RoundProgressBar(TQDMProgressBar):
    """Progress bar over communication rounds, with the loss, the cohort size and the simulated seconds."""

    def init_train_tqdm(self) -> Tqdm:
        """Count rounds."""
        bar = super().init_train_tqdm()
        bar.set_description("Round")
        return bar

    def init_validation_tqdm(self) -> Tqdm:
        """No bar for evaluations, which are short."""
        return Tqdm(disable=True)

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Start at the current round: the run may be resumed."""
        self.train_progress_bar = self.init_train_tqdm()
        self.train_progress_bar.reset(trainer.max_steps)
        self.train_progress_bar.initial = self.train_progress_bar.n = trainer.global_step

    def on_train_epoch_start(self, *_: Any) -> None:
        """Do nothing: all rounds are one epoch."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance by one round."""
        self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module), refresh=False)
        self.train_progress_bar.update(trainer.global_step - self.train_progress_bar.n)

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """The values in the bar, under short names."""
        names = {"train/loss": "loss", "system/cohort": "clients", "time/total": "simulated_s"}
        metrics = trainer.progress_bar_metrics
        return {short: f"{metrics[name]:.4g}" for name, short in names.items() if name in metrics}
