"""Scores every client with each of its models, on each split."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, cast

from torch import Tensor, nn

from pfl_lightning.client import ClientPredictions, Engine, Examples
from pfl_lightning.data import EvalBatch
from pfl_lightning.federation.cohort import Cohort
from pfl_lightning.metrics import ClientMetric, ClientScore
from pfl_lightning.score_kind import HEADLINED, LOSS, headline
from pfl_lightning.tasks import Task
from pfl_lightning.tree import Params

Models = Callable[[Examples], Iterator[tuple[str, Params]]]  # names and tensors of some clients' models
EngineOf = Callable[[str, Params], Engine]  # what predicts with a model, given its name and tensors
Update = tuple[Any, tuple[Any, ...]]  # a metric, and the arguments of its update


class Evaluator(nn.Module):
    """The metrics of an evaluation: models x splits x metrics, one entry per client in each.

    Attributes:
        scores: The clients' scores in the current evaluation, by ``split/model``.
        measures: Metrics of the models themselves, such as their density, by ``model/metric``; callbacks add theirs
            before an evaluation, and remove them after it. ``update`` takes the clients' ids, ``[cohort]``, and what
            ``measure``, a pure function of the cohort's models, has returned for them.
        others: Other metrics of the clients' predictions, by ``split/model/metric``; callbacks add theirs before an
            evaluation, and they are logged as the scores are.
    """

    def __init__(self) -> None:
        super().__init__()
        # a module's parts, which their users take for mappings
        self.scores = cast(MutableMapping[str, ClientScore], nn.ModuleDict())
        self.measures = cast(MutableMapping[str, Any], nn.ModuleDict())
        self.others = cast(MutableMapping[str, ClientMetric], nn.ModuleDict())
        self._differing: list[int] = []  # bytes of each tensor of which evaluated clients have their own

    def prepare(self, splits: list[Any], models: tuple[str, ...], clients: int, task: Task) -> None:
        """Make the scores of all splits and models, for so many clients."""
        self.scores.clear()
        self.others.clear()
        for split in splits:
            for model in models:
                score_kind = LOSS if split == "train" else task.score
                self.scores[f"{split}/{model}"] = ClientScore(clients, task, score_kind)

    def begin(self) -> None:
        """Begin an evaluation; the memory that a client takes is learned anew, so that a resumed run does the same."""
        self._differing.clear()

    def step(self, batch: EvalBatch, models: Models, engine_of: EngineOf, cohort: Cohort, input_bytes: int) -> None:
        """Evaluate some clients.

        Args:
            batch: The clients' examples.
            models: Makes the clients' models one by one.
            engine_of: The engine that scores a model.
            cohort: Splits the clients into chunks.
            input_bytes: Bytes of a network's input.
        """

        def work(places: Tensor, train: Examples) -> list[Update]:
            splits = {split: examples.at(places) for split, examples in batch.evaluated.items()}
            updates: list[Update] = []
            sizes: list[int] = []
            for model, params in models(train):
                engine = engine_of(model, params)
                sizes += [stack.nbytes // len(train) for stack in params.own.values()]
                for split, examples in splits.items():
                    updates += self._updates(f"{split}/{model}", examples, params, engine)
                for name, measure in self.measures.items():
                    if name.startswith(f"{model}/"):
                        updates.append((measure, (train.ids, measure.measure(params))))
            if not self._differing:
                self._differing += [*sizes, input_bytes * batch.train.longest]
            return updates

        for updates in cohort.map(work, batch.train, self._differing):
            for metric, arguments in updates:
                metric.update(*arguments)

    def _updates(self, name: str, examples: Examples, params: Params, engine: Engine) -> list[Update]:
        """The updates of each metric of a split and model for some clients."""
        metrics = [metric for key, metric in self.others.items() if key.rpartition("/")[0] == name]
        ids = examples.ids
        counts = examples.device_counts
        collected = [ClientPredictions(len(examples))] if metrics else []
        score = (ids, counts, engine.sums(examples, params, *collected))
        values = [(metric, (ids, counts, collected[0].map(metric.measure).to(ids.device))) for metric in metrics]
        return [(self.scores[name], score), *values]

    def results(self, first_model: str) -> dict[str, Tensor]:
        """Summarise an evaluation over the clients, by name, the headlines first, and reset the metrics.

        Args:
            first_model: The model of the headlines.
        """
        results: dict[str, Tensor] = {}
        for split in HEADLINED:
            if (name := f"{split}/{first_model}") in self.scores:
                score = self.scores[name]
                results[headline(split, score.score_kind)] = score.compute()["mean"].float()
        scores = [(f"{name}/{metric.score_kind.name}", metric) for name, metric in self.scores.items()]
        for name, metric in (*scores, *self.others.items()):
            results |= {f"{name}/{key}": value.float() for key, value in metric.compute().items()}
            metric.reset()
        return results
