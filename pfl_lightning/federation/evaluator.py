"""Scores every client with each of its models, on each split."""

from collections.abc import Callable, Iterator
from typing import Any, cast

from torch import Tensor, nn

from pfl_lightning.client import Collected, Engine, Examples
from pfl_lightning.data import EvalBatch
from pfl_lightning.federation.cohort import Cohort
from pfl_lightning.metrics import ClientMetric, ClientScore
from pfl_lightning.score_kind import ACCURACY, HEADLINED, LOSS, headline
from pfl_lightning.tree import Params

Models = Callable[[Examples], Iterator[tuple[str, Params]]]  # names and tensors of some clients' models
EngineOf = Callable[[str, Params], Engine]  # what predicts with a model, given its name and tensors
Found = tuple[Any, tuple[Tensor, ...]]  # a metric, and what it takes


class Evaluator(nn.Module):
    """The metrics of an evaluation: models x splits x metrics, one entry per client in each.

    Attributes:
        measures: Metrics of the models themselves, such as their density, by ``model/metric``; callbacks add theirs
            before an evaluation, and remove them after it. ``update`` takes the clients' ids, ``[cohort]``, and what
            ``measure``, a pure function of the cohort's models, has returned for them.
        others: Other metrics of the clients' predictions, by ``split/model/metric``; callbacks add theirs before an
            evaluation, and they are logged as the scores are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scores, self.measures, self.others = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        self._differing: list[int] = []  # bytes of each tensor of which evaluated clients have their own

    @property
    def scores(self) -> dict[str, ClientScore]:
        """The clients' scores in the current evaluation, by ``split/model``."""
        return cast(dict[str, ClientScore], dict(self._scores.items()))

    def prepare(self, splits: list[Any], models: tuple[str, ...], clients: int, regression: bool) -> None:
        """Make the scores of all splits and models, for so many clients."""
        self._scores.clear()
        self.others.clear()
        for split in splits:
            for model in models:
                score_kind = LOSS if regression or split == "train" else ACCURACY
                self._scores[f"{split}/{model}"] = ClientScore(clients, score_kind)

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

        def work(start: int, train: Examples) -> list[Found]:
            splits = {split: examples.rows(start, start + len(train)) for split, examples in batch.evaluated.items()}
            found: list[Found] = []
            own: list[int] = []
            for model, params in models(train):
                engine = engine_of(model, params)
                own += [stack.nbytes // len(train) for stack in params.own.values()]
                for split, examples in splits.items():
                    found += self._scored(f"{split}/{model}", examples, params, engine)
                watching: list[Any] = [each for name, each in self.measures.items() if name.startswith(f"{model}/")]
                found += [(metric, (train.ids, metric.measure(params))) for metric in watching]
            if not self._differing:
                self._differing += [*own, input_bytes * batch.train.longest]
            return found

        for found in cohort.map(work, batch.train, self._differing):
            for metric, values in found:
                metric.update(*values)

    def _scored(self, name: str, examples: Examples, params: Params, engine: Engine) -> list[Found]:
        """The updates of each metric of a split and model for some clients."""
        others = [cast(ClientMetric, metric) for key, metric in self.others.items() if key.rpartition("/")[0] == name]
        ids, counts, shown = examples.ids, examples.device_counts, [Collected(len(examples))] if others else []
        score = (ids, counts, *engine.score(examples, params, *shown))
        values = [(metric, (ids, counts, shown[0].map(metric.measure).to(ids.device))) for metric in others]
        return [(self._scores[name], score), *values]

    def results(self, first_model: str) -> dict[str, Tensor]:
        """Summarise an evaluation over the clients, by name, the headlines first, and reset the metrics.

        Args:
            first_model: The model of the headlines.
        """
        found: dict[str, Tensor] = {}
        for split in HEADLINED:
            if (first := self.scores.get(f"{split}/{first_model}")) is not None:
                found[headline(split, first.score_kind)] = first.compute()["mean"].float()
        scores = {f"{name}/{metric.score_kind.name}": metric for name, metric in self.scores.items()}
        for name, metric in {**scores, **cast(dict[str, ClientMetric], dict(self.others.items()))}.items():
            found |= {f"{name}/{key}": value.float() for key, value in metric.compute().items()}
            metric.reset()
        return found
