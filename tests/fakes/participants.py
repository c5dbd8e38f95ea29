"""Who takes part."""

import lightning.pytorch as pl


class CountParticipants(pl.Callback):
    """Stores the number of participants of every round."""

    def __init__(self):
        self.sizes = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.sizes.append(len(batch.examples))
