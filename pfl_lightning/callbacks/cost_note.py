import sys

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_only

from pfl_lightning import processes
from pfl_lightning.data import FederatedDataModule, federated
from pfl_lightning.methods import method_of

STEPS, VISITS = 5_000, 1_000_000  # from which on a round, and a round with an evaluation, are worth a line


class CostNote(pl.Callback):
    """Before the first round, one line on stderr says what a round and an evaluation cost, where that is much.

    Another line says how many samples are left if ``data.max_samples`` leaves some out.

    Much is 5,000 steps of all clients together in a round, or a million visits to samples in a round and an evaluation:
    one for each sample in each local epoch, one more where layers that do not train are run on it, and one where it is
    scored. The callback comes after those that choose the participants, and before ``EvaluateStartAndEnd``.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the lines, or nothing."""
        data, method = federated(trainer), method_of(pl_module)
        self._tell_kept(data)
        cohort = data.make_round(method.clock.rounds).examples.to(method.device)
        if not len(cohort):  # all uploads of the first round are dropped
            return
        training, own = method.training_cost(cohort), method.evaluation_cost().visits
        evaluation = processes.total({"samples": own.sum(), "clients": torch.tensor(len(own))})
        steps, visits = int(training.steps.sum()), int(training.visits.sum())
        samples, clients = int(evaluation["samples"]), int(evaluation["clients"])
        if steps >= STEPS or visits + samples >= VISITS:
            _say(
                f"a round trains {len(cohort):,} clients in {steps:,} steps on {visits:,} samples, an evaluation takes "
                f"{samples:,} samples of {clients:,} clients (each epoch counts); "
                "data.max_samples limits those of a client"
            )

    @staticmethod
    def _tell_kept(data: FederatedDataModule) -> None:
        counts = torch.cat([table.counts for table in data.tables.values()])
        if data.max_samples is not None and counts.max() == data.max_samples:
            kept, there = int(counts.sum()), len(data.tables["train"].samples.targets)
            _say(f"data.max_samples: {data.max_samples} keeps {kept:,} of {there:,} samples; null keeps all")


@rank_zero_only
def _say(note: str) -> None:
    sys.stderr.write(f"pfl: note: {note}\n")
