"""How a method's clients are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Judgement

if TYPE_CHECKING:
    from pfl_lightning.methods.base import Method

Scores = tuple[Tensor, Tensor, Tensor, Tensor]  # ids, counts, correct predictions and losses of some clients


def judge_clients(method: Method, batch: Judgement) -> None:
    """Judge some clients by each model of the method, on each split; the results go to ``method.metrics``."""
    key = (batch.seed, "refit", method.clock.rounds)

    def work(start: int, train: Examples) -> list[tuple[str, Scores]]:
        held_out = {split: e.rows(start, start + len(train)) for split, e in batch.held_out.items()}
        return [
            (f"{split}/{model}", (examples.ids, examples.counts, *method.engine.score(examples, params)))
            for model, params in method.judge(train, key)
            for split, examples in held_out.items()
        ]

    for scores in method.chunks.map(work, batch.train):
        for name, (ids, counts, correct, losses) in scores:
            method.metrics[name].update(ids, counts.to(method.device), correct, losses)


def log_scores(method: Method) -> None:
    """Log how the scores are spread over the clients, and forget them."""
    for name, metric in method.metrics.items():
        summary = metric.compute().items()
        method.log_dict({f"{name}/{metric.quantity.name}/{key}": value.float() for key, value in summary})
        metric.reset()
