from collections.abc import Callable
from typing import Any, ClassVar

import lightning.pytorch as pl
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.bounds import PositiveInt
from pfl_lightning.callbacks.doubling import Doubling, Unit
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.server import client_weights
from pfl_lightning.tree import Tree, add_to, mix


class GradientDoubling(Doubling):
    """Stage doubling as in FLANP: a stage ends when its gradient is small (the stage's statistical accuracy).

    Stage r has the fastest min(pool, 2^r n0) clients of the pool. The first stage ends after ``rounds_per_stage``
    rounds. The threshold of stage 1 is half of |g|^2 at that time, with g the gradient of the participants' mean loss
    with respect to the shared tensors; each later stage halves it. Stages from 1 on end when |g|^2 is below the
    threshold, or after ``rounds_per_stage`` rounds.

    Paper: Reisizadeh et al., Straggler-Resilient Federated Learning, 2020, arXiv:2012.14453.

    Differs: FLANP's threshold is 2 mu c / (n s) with constants that are unknown in practice; the rule here is the one
    of its authors' experiments. FLANP trains with FedGATE; here the method is free.

    Args:
        n0: Participants in the first stage.
        rounds_per_stage: Length of the first stage, and maximum length of the others.
        double_by: See ``StageDoubling``.
    """

    saved: ClassVar[dict[str, Any]] = {"stage": 0, "rounds": 0, "threshold": 0.0}
    rounds: int
    threshold: float

    def __init__(self, n0: PositiveInt = 10, rounds_per_stage: PositiveInt = 20, double_by: Unit = "clients") -> None:
        super().__init__(n0, double_by)
        self.rounds_per_stage = rounds_per_stage

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Begin with the first stage, or continue with that of the checkpoint.

        Raises:
            PflError: If the method shares no parameters, or several models, so that there is no gradient to measure.
        """
        shares_nothing = not method.shared & method.engine.trainable
        if shares_nothing or not method.uploads_models:
            problem = f"{type(method).__name__} shares {'nothing' if shares_nothing else 'no single model'}"
            raise PflError(f"GradientDoubling needs one shared model, but {problem}; use StageDoubling")
        super().begin(trainer, method)

    def after_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """Measure the gradient, and decide whether the stage ends; a round that was given up does not count."""
        if batch.lacks_uploads(method.aggregator.fewest):
            return
        square = squared_gradient_norm(method, batch)
        method.log("train/squared_gradient_norm", square)
        self.rounds += 1
        if self.rounds < self.rounds_per_stage and square >= self.threshold:
            return
        self.threshold = (square if self.stage == 0 else self.threshold) / 2
        self.stage += 1
        self.rounds = 0


def squared_gradient_norm(method: Method, batch: Round) -> float:
    """|g|^2 of the participants' weighted mean loss on all their samples, with respect to the shared tensors."""
    names = method.shared & method.engine.trainable
    mean = weighted_sum(
        method, batch, lambda cohort: method.engine.gradient(cohort, method.received(cohort.ids), names)
    )
    return float(sum(gradient.square().sum() for gradient in mean.values()))


def weighted_sum(method: Method, batch: Round, measure: Callable[[Examples], Tree]) -> Tree:
    """Sum of what is measured of the participants of a round, with their weights.

    Args:
        method: The method.
        batch: The round.
        measure: What is measured of some of them, ``[cohort, ...]`` by name.

    Returns:
        The sums, ``[...]`` by name.
    """
    weights = client_weights(batch.examples.counts, method.weighting).to(method.device)

    def work(chosen: Tensor, cohort: Examples) -> Tree:
        measured = measure(cohort)
        return mix(weights[places[chosen]].to(next(iter(measured.values())).dtype), measured)

    mean: Tree = {}
    with method.cohort.share(method.clients, batch.examples) as (places, examples):
        for part in method.cohort.run("measuring", work, examples):
            add_to(mean, part)
    return processes.all_reduce(mean, some_lack=len(batch.examples) < processes.count())
