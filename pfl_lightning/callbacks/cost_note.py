import sys

import lightning.pytorch as pl

from pfl_lightning.data import federated
from pfl_lightning.methods import method_of

STEPS, VISITS = 5_000, 1_000_000  # from which on a round, and a round with an evaluation, are worth a line


class CostNote(pl.Callback):
    """Before the first round, one line on stderr says what a round and an evaluation cost, where that is much.

    Much is 5,000 steps of all clients together in a round, or a million visits to samples in a round and an evaluation:
    one for each sample in each local epoch, one more where layers that do not train are run on it, and one where it is
    scored. The callback comes after those that choose the participants, and before ``EvaluateStartAndEnd``.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the line, or nothing."""
        data, method = federated(trainer), method_of(pl_module)
        cohort = data.make_round(method.clock.rounds).examples.to(method.device)
        training, evaluation = method.training_cost(cohort), method.evaluation_cost().visits
        steps, visits, evaluated = (int(each.sum()) for each in (training.steps, training.visits, evaluation))
        if steps >= STEPS or visits + evaluated >= VISITS:
            sys.stderr.write(
                f"pfl: note: a round trains {len(cohort):,} clients in {steps:,} steps on {visits:,} samples, an "
                f"evaluation takes {evaluated:,} samples of {len(evaluation):,} clients (each epoch counts); "
                "data.max_samples limits those of a client\n"
            )
