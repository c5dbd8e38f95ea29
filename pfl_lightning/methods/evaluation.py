"""How a method's clients are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl_lightning.data import Judgement

if TYPE_CHECKING:
    from pfl_lightning.methods.base import Method


def judge_clients(method: Method, batch: Judgement) -> None:
    """Judge some clients by each model of the method, on each split; the results go to ``method.metrics``."""
    key = (batch.seed, "refit", method.clock.rounds)
    for start, train in batch.train.split(method.clients_at_once):
        held_out = {split: e.rows(start, start + len(train)) for split, e in batch.held_out.items()}
        for model, params in method.judge(train, key):
            for split, examples in held_out.items():
                correct, losses = method.engine.score(examples, params)
                metric = method.metrics[f"{split}/{model}"]
                metric.update(examples.ids, examples.counts.to(method.device), correct, losses)


def log_scores(method: Method) -> None:
    """Log how the scores are spread over the clients, and forget them."""
    for name, metric in method.metrics.items():
        summary = metric.compute().items()
        method.log_dict({f"{name}/{metric.quantity}/{key}": value.float() for key, value in summary})
        metric.reset()
