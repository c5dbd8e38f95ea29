from typing import Any

import lightning.pytorch as pl


class EvaluateStartAndEnd(pl.Callback):
    """Evaluates before the first round and after the last one, regardless of ``val_check_interval``."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Run the validation loop in the same way as the training loop does, unless the run is resumed."""
        if trainer.global_step == 0:
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Request a stop after the last round: Lightning evaluates before it stops."""
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True
