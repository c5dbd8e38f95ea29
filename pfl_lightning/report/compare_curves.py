"""Curves: runs that differ only in their seed, evaluated by one model, and named as in the papers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.errors import PflError
from pfl_lightning.report.run_files import COHORT, LOSS, Floats, Ints, RunRecord
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.settings.values import outermost, shown_class

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Curve:
    """Runs with the same settings, one per seed, evaluated by one model.

    Attributes:
        runs: One run per seed, in the order of the seeds.
        model: The evaluated model.
        suffix: Settings that tell it from curves with the same name.
    """

    runs: Sequence[RunRecord]
    model: str
    suffix: str = ""

    @property
    def label(self) -> str:
        """Name in tables and legends, which says whether runs have diverged."""
        diverged = sum(run.diverged for run in self.runs)
        if not diverged:
            return self.name
        return f"{self.name} ({f'{diverged} of {len(self.runs)} seeds ' if len(self.runs) > 1 else ''}diverged)"

    @property
    def name(self) -> str:
        """Name of the method, with the settings that tell it from others."""
        return self._named(self.runs[0].label.name)

    @property
    def family(self) -> str:
        """The name without stage doubling; curves of a family share a colour."""
        return self._named(self.runs[0].label.method)

    @property
    def doubled(self) -> bool:
        """Whether the runs start with the fastest clients and double their number."""
        return self.runs[0].label.doubling is not None

    @property
    def score_kind(self) -> ScoreKind:
        """What clients are evaluated by."""
        return self.runs[0].score_kind

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [run.seed for run in self.runs]

    @cached_property
    def rounds(self) -> Ints:
        """Rounds completed at each evaluation that all seeds have, ``[evaluations]``."""
        return reduce(np.intersect1d, [run.rounds for run in self.runs])

    def stack(self, series: Iterable["pd.Series"]) -> Floats:
        """What the runs have by round, at the evaluations that all seeds have, ``[seeds, evaluations]``."""
        return np.stack([values.reindex(self.rounds) for values in series])

    @cached_property
    def means(self) -> Floats:
        """Mean score of the clients, ``[seeds, evaluations]``."""
        return self.stack(run.logged[f"test/{self.model}/{self.score_kind.name}/mean"] for run in self.runs)

    def times(self, communication_time: float) -> Floats:
        """Simulated seconds at each evaluation, ``[seeds, evaluations]``; see ``RunRecord.seconds``."""
        return self.stack(run.seconds(communication_time) for run in self.runs)

    def until(self, tag: str) -> Floats:
        """What one of ``RunRecord.counts`` has grown to at each evaluation, ``[seeds, evaluations]``."""
        return self.stack(run.counts[tag] for run in self.runs)

    def evaluates(self, split: str) -> bool:
        """Whether the clients were also evaluated on a split."""
        return all((split, self.model, self.rounds[-1]) in run.clients for run in self.runs)

    def results(self, split: str, evaluation: int = -1) -> list["pd.DataFrame"]:
        """The clients' results on a split that is evaluated, for each seed; by default at the last evaluation."""
        return [run.clients[split, self.model, self.rounds[evaluation]] for run in self.runs]

    def final(self, column: str, split: str = "test") -> list[NDArray[Any]]:
        """A column of ``results`` at the last evaluation, ``[clients]`` for each seed."""
        return [clients[column].to_numpy() for clients in self.results(split)]

    @cached_property
    def cohorts(self) -> "pd.DataFrame":
        """The number of clients that trained in the rounds that all seeds log, ``[rounds, seeds]``."""
        import pandas as pd

        return pd.concat([run.logged[COHORT] for run in self.runs], axis=1).dropna()

    def reached(self, score: float | Floats) -> NDArray[np.bool_]:
        """At which evaluations the mean score is this good, ``[seeds, evaluations]``; see ``reach``."""
        sign = 1 if self.score_kind.higher_is_better else -1
        return sign * self.means >= sign * score - 1e-6  # metrics.csv holds numbers of single precision

    def reach(self, score: float | Floats, costs: Floats) -> tuple[Floats, Floats]:
        """Between which evaluations the mean score has become this good.

        Args:
            score: The score, or one for each seed, ``[seeds, 1]``.
            costs: What each evaluation has cost, ``[seeds, evaluations]``.

        Returns:
            The costs of the last evaluation before, and of the first one with this score, ``[seeds]`` each; twice the
            same if that is the first of all, and nan for never.
        """
        reached = self.reached(score)
        first = reached.argmax(1)
        seeds = np.arange(len(costs))
        ends = costs[seeds, np.maximum(first - 1, 0)], costs[seeds, first]
        before, at_target = np.where(reached.any(1), ends, np.nan)
        return before, at_target

    def logs(self, tag: str) -> bool:
        """Whether all runs have logged a tag."""
        return all(tag in run.logged for run in self.runs)

    def logs_losses(self) -> bool:
        """Whether the runs have logged the training loss of every round up to the last evaluation."""
        return all(run.logged[LOSS].reindex(range(1, run.rounds[-1] + 1)).notna().all() for run in self.runs)

    def convergence(self, communication_time: float) -> tuple[Floats, Floats]:
        """The round, and simulated seconds, at which the training loss has converged, nan for never, ``[seeds]``."""
        rounds = [converged_round(run.logged[LOSS].dropna().to_numpy()) for run in self.runs]
        seconds = [run.seconds(communication_time) for run in self.runs]
        ends = [values.get(last, np.nan) for values, last in zip(seconds, rounds, strict=True)]
        return np.array(rounds, dtype=float), np.array(ends)  # None becomes nan

    def _named(self, name: str) -> str:
        run = self.runs[0]
        default = "" if self.model in usual_models(run) else f" ({self.model})"
        return name + run.label.suffixes.get(self.model, default) + self.suffix


Curves = Sequence[Curve]
Settings = Mapping[str, Any]


def usual_models(run: RunRecord) -> Sequence[str]:
    """The models that a method is evaluated by in the papers; if it does not say so, its first one."""
    return [model for model in run.models if model in run.label.suffixes] or run.models[:1]


def curves_of(runs: Sequence[RunRecord], models: Sequence[str] = ()) -> list[Curve]:
    """Group runs by their settings.

    Args:
        runs: Runs on the same data.
        models: The evaluated models; by default each method's usual ones.

    Returns:
        Curves with labels of their own, in the order of the runs, but methods beside their variants with doubling.

    Raises:
        PflError: If a model is in no run, or a run has none of them, or if two runs of a curve have the same seed or no
            common round.
    """
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(repr(sorted(run.settings.items())), []).append(run)
    curves = [curve for group in groups.values() for curve in _curves_of_group(group, models)]
    choices = dict.fromkeys(model for run in runs for model in run.models)
    if unknown := [model for model in models if model not in choices]:
        raise PflError(f"models: {unknown[0]} is in none of the runs; allowed: {', '.join(choices)}")
    names = [curve.name for curve in curves]
    namesakes = {name: [curve.runs[0].settings for curve in curves if curve.name == name] for name in names}
    curves = [replace(curve, suffix=_suffix(curve.runs[0].settings, namesakes[curve.name])) for curve in curves]
    families = [curve.family for curve in curves]
    return sorted(curves, key=lambda curve: (families.index(curve.family), curve.doubled))


def without_doubling(curve: Curve, curves: Curves) -> Curve | None:
    """The same method without stage doubling among some curves; how long they run may differ."""
    if not curve.doubled:
        return None
    settings = _undoubled_settings(curve)
    same = (c for c in curves if not c.doubled and c.model == curve.model and _undoubled_settings(c) == settings)
    return next(same, None)


def _undoubled_settings(curve: Curve) -> dict[str, Any]:
    """The settings of a curve without its doubling and the number of its rounds and evaluations."""
    run = curve.runs[0]
    excluded = ("trainer", run.label.doubling)
    return {key: value for key, value in run.settings.items() if key.partition(".")[0] not in excluded}


def _curves_of_group(group: list[RunRecord], models: Sequence[str]) -> Iterator[Curve]:
    """The curves of runs that differ only in their seed."""
    group.sort(key=lambda run: run.seed)
    for run, successor in pairwise(group):
        if run.seed == successor.seed:
            folders = f"'{run.folder}' and '{successor.folder}'"
            raise PflError(f"seed_everything: {run.seed} in {folders} with the same settings; compare one run per seed")
    first = group[0]
    compared = [model for model in models if model in first.models] if models else usual_models(first)
    if not compared:
        raise PflError(f"models: '{first.folder}' has none of {', '.join(models)}; allowed: {', '.join(first.models)}")
    for model in compared:
        curve = Curve(group, model)
        if not len(curve.rounds):
            raise PflError(f"runs: the seeds of '{first.folder}' share no evaluated round")
        yield curve


def _suffix(settings: Settings, namesakes: Sequence[Settings]) -> str:
    """What tells a curve from others of its name, such as ", lr=0.1"; options of other classes if needed."""
    keys = dict.fromkeys(key for namesake in namesakes for key in namesake)
    differing = [key for key in keys if len({repr(namesake.get(key)) for namesake in namesakes}) > 1]
    short = {_options(namesake, outermost(differing)) for namesake in namesakes}
    return _options(settings, outermost(differing) if len(short) == len(namesakes) else differing)


def _options(settings: Settings, keys: Sequence[str]) -> str:
    names = {key: key.partition(".")[2].removeprefix("local.") or key for key in keys if key in settings}
    options = [(name, shown_class(str(settings[key]))) for key, name in names.items()]
    return "".join(f", {name}" if name == value else f", {name}={value}" for name, value in options)


def converged_round(
    losses: Sequence[float], window: int = 5, improvement: float = 1e-3, patience: int = 10
) -> int | None:
    """The first round at which a loss has all but stopped falling.

    The DePRL paper reports convergence times (Xiong et al., AAAI 2024, arXiv:2312.10815, Table 9) without a criterion;
    this one is ours: in each of the last ``patience`` rounds, the moving average over ``window`` rounds has improved by
    at most the share ``improvement``.

    Args:
        losses: Training losses of the rounds 1, 2, ...
        window: Rounds in the moving average.
        improvement: Share of the average of the round before.
        patience: Rounds in a row.

    Returns:
        A round, from ``window + patience`` on; None if the loss is still falling at the end, or is not finite.

    Examples:
        >>> converged_round([4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0], window=1, patience=3)
        7
    """
    import pandas as pd

    averages = pd.Series(losses).rolling(window).mean()
    stalled = averages >= (1 - improvement) * averages.shift()
    ends = stalled.rolling(patience).sum() == patience
    return int(ends.idxmax()) + 1 if ends.any() else None
