"""``pfl sweep --search``: settings with the best validation score, found by Optuna.

A trial is the runs of some settings with every seed. Its score is the mean over the seeds of the score by which
``best.ckpt`` is chosen: the best evaluation of a run on validation samples, larger is better. A trial with a run that
fails, such as one that diverges, is pruned: it counts as worse than all others. If none of the first runs even begins,
as without its data, the search ends, and can be started again.

What a trial tries is a function of the first seed, its number and the finished trials before it, so that a search that
was stopped goes on as if it had not been. Of choices alone each combination is tried once, in an order of the seed's.
"""

import json
import math
import re
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

import optuna
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from pfl_lightning import files
from pfl_lightning.callbacks import RoundCheckpoint
from pfl_lightning.cli.console import show
from pfl_lightning.cli.planning import PlannedRun, check, has_begun, planned_runs, values_by_key
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import numpy_generator, seed_of
from pfl_lightning.settings.parser import load_settings
from pfl_lightning.settings.values import flat

Space = Mapping[str, Any]  # Optuna's distribution of each setting
RANGE = re.compile(r"(log:)?([^,:]+?)\.\.([^,:]+)")
DIGITS = 4  # of a real number that is tried: folders are named by it


class Executor(Protocol):
    """What executes runs; ``signal`` is not 0 after it was asked to stop."""

    signal: int

    def execute_all(self, runs: Iterable[PlannedRun]) -> list[Path | None]:
        """Execute runs, and return the folders of those that are finished."""


class Search:
    """The search for the best settings of one method, which is kept in Optuna's journal.

    Args:
        method: Settings file of the method.
        space: What to try.
        seeds: Values of ``seed_everything``.
        passed: Other arguments of ``pfl fit``.
        out: Folder of all runs.

    Raises:
        PflError: If trials would be scored by test samples, or an end of a range, or a choice, is not possible.
    """

    def __init__(self, method: str, space: Space, seeds: Sequence[int], passed: Sequence[str], out: Path) -> None:
        self.method, self.space, self.passed, self.out = method, space, passed, out
        self.seeds = list(dict.fromkeys(map(int, seeds)))
        self.combinations = combinations_of(space, self.seeds[0])
        self.folder = out / "search" / Path(method).stem
        self.common = self.settings({})
        monitor = self.common["checkpoint"]["monitor"]
        if not (monitor or "val/").startswith("val/"):
            allowed = "one starting with val/"
            raise PflError(f"checkpoint.monitor: {monitor} is not possible with search; allowed: {allowed}")
        data = self.common["data"]["init_args"]
        if data.get("val_fraction") == 0 and not data.get("val_clients"):
            raise PflError("data.val_fraction: 0 is not possible with search; allowed: more than 0")
        for key, tried in space.items():
            for end in getattr(tried, "choices", None) or (tried.low, tried.high):
                self.planned("", {key: word(end, tried)})

    def planned(self, number: str, values: Mapping[str, str]) -> list[PlannedRun]:
        """The runs of some settings, one for each seed."""
        return planned_runs([number] * len(self.seeds), self.method, values, self.seeds, self.passed, self.out)

    def settings(self, values: Mapping[str, str]) -> dict[str, Any]:
        """The settings of a trial, with which others can be run."""
        found = self.planned("", values)[0].settings
        del found["seed_everything"], found["trainer"]["default_root_dir"], found["trainer"]["enable_progress_bar"]
        return found

    def study(self) -> optuna.Study:
        """The study of this search, in the folder.

        Raises:
            PflError: If another search is there, whose table would be lost, or one of other settings in a file.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(self.folder / "study.log")))
        name = json.dumps([{key: str(tried) for key, tried in self.space.items()}, self.seeds, [*self.passed]])
        if others := {*optuna.get_all_study_names(storage)} - {name}:
            raise PflError(f"search: '{self.folder}' has {others.pop()}, not {name}; keep it, or choose another --out")
        study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
        now = json.loads(json.dumps(dict(flat(self.common))))
        for key, value in study.user_attrs.get("settings", now).items():
            if value != now.get(key):
                was = f"'{self.folder}' was made with {value}, and now there is {now.get(key)}"
                raise PflError(f"search: {key}: {was}; keep it, or choose another --out")
        study.set_user_attr("settings", now)
        return study

    def run(self, trials: int, at_once: int, sweep: Executor) -> bool:
        """Make the trials that are missing, and write what was found.

        Args:
            trials: Number of trials in all, as far as there is something left to try.
            at_once: Trials at the same time; the later ones do not know of the earlier ones.
            sweep: Executes the runs.

        Returns:
            Whether all trials were made, and one of them has a score.
        """
        study, ends = self.study(), bool(sweep.signal)
        trials = min(trials, len(self.combinations) or trials)
        if len(finished(study)) >= trials:
            self.write(study)
        while (made := len(finished(study))) < trials and not ends:
            numbers = range(made, min(made + at_once, trials))
            asked = [self.ask(study, number) for number in numbers]
            runs = [
                self.planned(f"trial {number + 1}/{trials},", self.values(trial))
                for number, trial in zip(numbers, asked, strict=True)
            ]
            done = sweep.execute_all(chain(*runs))
            ends = bool(sweep.signal) or not (made or any(done) or any(has_begun(run.folder) for run in chain(*runs)))
            folders = iter(done)
            for trial, of_trial in zip(asked, runs, strict=True):
                is_done = None not in [next(folders) for _ in of_trial]
                if is_done and not ends:
                    self.tell(study, trial, of_trial)
                else:
                    study.tell(trial, state=TrialState.FAIL if ends else TrialState.PRUNED)
            self.write(study)
        return any(trial.value is not None for trial in finished(study)) and not sweep.signal

    def ask(self, study: optuna.Study, number: int) -> optuna.Trial:
        """A new trial; its user attributes are its settings as the command line takes them."""
        study.sampler = self.sampler(number)
        trial = study.ask(dict(self.space))
        for key, tried in self.space.items():
            trial.set_user_attr(key, word(trial.params[key], tried))
        return trial

    def sampler(self, number: int) -> BaseSampler:
        """What draws the settings of a trial."""
        if not self.combinations:
            return TPESampler(seed=seed_of(self.seeds[0], "trial", number) % 2**32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return PartialFixedSampler(self.combinations[number], RandomSampler())

    def values(self, trial: optuna.Trial | optuna.trial.FrozenTrial) -> dict[str, str]:
        """The settings of a trial."""
        return {key: trial.user_attrs[key] for key in self.space}

    def tell(self, study: optuna.Study, trial: optuna.Trial, runs: Sequence[PlannedRun]) -> None:
        """End a trial with the mean of its scores."""
        scores = list(map(score_of, runs))
        for seed, score in zip(self.seeds, scores, strict=True):
            trial.set_user_attr(f"seed_{seed}", score)
        study.tell(trial, mean(scores))

    def write(self, study: optuna.Study) -> None:
        """Write the table of the trials and the settings of the best one, and say which it is."""
        table = study.trials_dataframe(("number", "state", "value", "user_attrs"))
        table.columns = table.columns.str.removeprefix("user_attrs_")
        files.write_text(table.to_csv(index=False), self.folder / "trials.csv")
        if any(trial.value is not None for trial in finished(study)):
            path = self.folder / "best.yaml"
            best = self.settings(self.values(study.best_trial))
            files.write_text(yaml.safe_dump(best, sort_keys=False), path)
            which = f"trial {study.best_trial.number} of {path.with_name('trials.csv')}"
            show(f"Best so far: {which}: {shlex.join(['pfl', 'fit', '--config', str(path)])}")


def planned_searches(
    methods: Sequence[str], search: Sequence[str], seeds: Sequence[int], passed: Sequence[str], out: Path
) -> list[Search]:
    """A search for each method.

    Args:
        methods: Settings files of the methods.
        search: What to search, such as ``model.lr=log:0.001..1``.
        seeds: Values of ``seed_everything``.
        passed: Other arguments of ``pfl fit``.
        out: Folder of all runs.

    Raises:
        PflError: If a search is not possible.
    """
    space = space_of(search)
    check(methods, space, passed, "search")
    return [Search(method, space, seeds, passed, out) for method in methods]


def space_of(search: Sequence[str]) -> Space:
    """What a search tries: ranges such as ``model.lr=log:0.001..1``, and choices such as ``model.epochs=1,2,5``."""
    space = {
        key: number_range(key, ",".join(choices)) if is_range(choices[0]) else CategoricalDistribution(choices)
        for key, choices in values_by_key(search, "search").items()
    }
    if alone := [word for word, tried in zip(search, space.values(), strict=True) if tried.single()]:
        allowed = "several values, or a range, such as model.lr=log:0.001..1"
        raise PflError(f"search: {alone[0]} is a single value, which leaves nothing to search; allowed: {allowed}")
    return space


def combinations_of(space: Space, seed: int) -> list[dict[str, Any]]:
    """All combinations of choices, in random order; none if there is a range."""
    choices = [getattr(tried, "choices", ()) for tried in space.values()]
    combinations = [dict(zip(space, values, strict=True)) for values in product(*choices)]
    numpy_generator(seed, "combinations").shuffle(combinations)
    return combinations


def is_range(text: str) -> bool:
    """Whether this is meant as a range of numbers; a path, such as ``../a``, is not."""
    return ".." in text and "/" not in text


def number_range(key: str, text: str) -> Any:
    """Numbers between two ends: whole ones if both ends are."""
    try:
        log, *ends = RANGE.fullmatch(text).groups()  # type: ignore[union-attr]
        low, high = map(load_settings, ends)
        if not math.isfinite(high - low):
            raise ValueError
        kind: Any = IntDistribution if isinstance(low, int) and isinstance(high, int) else FloatDistribution
        return kind(low, high, log=bool(log))
    except (AttributeError, TypeError, ValueError, yaml.YAMLError):
        allowed = "low..high, or log:low..high from above 0, such as model.lr=log:0.001..1"
        raise PflError(f"search: {key}={text} is not possible; allowed: {allowed}") from None


def word(value: Any, tried: Any) -> str:
    """What is tried as the command line takes it; real numbers have few digits."""
    if not isinstance(value, float):
        return str(value)
    return repr(min(max(float(f"{value:.{DIGITS}g}"), tried.low), tried.high))


def finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """The trials that were not interrupted."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def score_of(run: PlannedRun) -> float:
    """The score of a finished run's best evaluation; larger is better, so a loss has a minus.

    Raises:
        PflError: If the run was not evaluated on validation samples.
    """
    resume = run.resume()
    assert resume is not None, "the run is finished"
    score = float(resume.content["callbacks"][RoundCheckpoint().state_key]["best_score"])
    if score == -math.inf:
        allowed = "data with validation samples, see data.val_fraction"
        raise PflError(f"search: {resume.content['monitor']} was not logged; allowed: {allowed}")
    return score
