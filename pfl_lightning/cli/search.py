"""``pfl sweep --search``: settings with the best validation score, found by Optuna.

A trial is the runs of some settings with every seed. Its score is the mean over the seeds of the score by which
``best.ckpt`` is chosen: the best evaluation of a run on validation samples, larger is better. A trial with a run that
diverges or is refused is pruned: it counts as worse than all others. If a run fails by anything else, such as a full
disk, or none of the first runs even begins, as without its data, the search ends; the same command makes these trials
again.

What a trial tries is a function of the first seed, its number and the finished trials before it, so that a search that
was stopped goes on as if it had not been. Of choices alone each combination is tried once, in an order of the seed's.
"""

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from pfl_lightning import files
from pfl_lightning.callbacks import RoundCheckpoint
from pfl_lightning.cli.console import show
from pfl_lightning.cli.execution import Sweep
from pfl_lightning.cli.planning import (
    BEST,
    KEEP,
    Plan,
    PlannedRun,
    combinations,
    has_begun,
    labels,
    parse,
    without_place,
)
from pfl_lightning.errors import PflError
from pfl_lightning.runs.folders import RunFolder
from pfl_lightning.seeding import numpy_generator, seed_of
from pfl_lightning.settings.values import changes, flat

Space = Mapping[str, Any]  # Optuna's distribution of each setting
DIGITS = 4  # of a real number that is tried: folders are named by it


class Journal(JournalFileBackend):
    """Optuna's journal, whose errors name its file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write some lines.

        Raises:
            OSError: If there is no room for them.
        """
        with files.naming(self.path):
            super().append_logs(logs)


class Search:
    """The search for the best settings of one method, which is kept in Optuna's journal.

    Args:
        plan: What all runs share.
        method: Settings file of the method, or its class.
        space: What to try.

    Raises:
        PflError: If trials would be scored by test samples, or an end of a range, or a choice, is not possible.
    """

    def __init__(self, plan: Plan, method: str, space: Space) -> None:
        self.plan = plan
        self.method = method
        self.space = space
        self.folder = plan.out / "search" / plan.name(method)
        self.journal = self.folder / "study.log"
        self.combinations = combinations({key: getattr(tried, "choices", ()) for key, tried in space.items()})
        numpy_generator(plan.seeds[0], "combinations").shuffle(self.combinations)
        self.common = self.settings({})
        monitor = self.common["checkpoint"]["monitor"]
        if not (monitor or "val/").startswith("val/"):
            raise PflError(f"checkpoint.monitor must start with val/ in a search, got {monitor}")
        data = self.common["data"]["init_args"]
        if data.get("val_fraction") == 0 and not data.get("val_clients"):
            raise PflError("data.val_fraction must be more than 0 in a search, got 0")
        for key, tried in space.items():
            for end in getattr(tried, "choices", None) or (tried.low, tried.high):
                self.settings({key: word(end, tried)})

    def settings(self, values: Mapping[str, str]) -> dict[str, Any]:
        """The settings of a trial, with which others can be run."""
        return without_place(self.plan.runs(self.method, values)[0].settings)

    @cached_property
    def study(self) -> optuna.Study:
        """The study of this search, in the folder.

        Raises:
            PflError: If another search is there, whose table would be lost.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = JournalStorage(Journal(self.journal))
        study = optuna.create_study(
            storage=storage, study_name=self.folder.name, direction="maximize", load_if_exists=True
        )
        space = {key: str(tried) for key, tried in self.space.items()}
        settings = dict(flat({**self.common, "seeds": self.plan.seeds, "search": space}))
        for key, (before, after) in changes(study.user_attrs.get("settings", settings), settings).items():
            raise PflError(f"{key}: {before} in '{self.folder}', {after} now; {KEEP}")
        study.set_user_attr("settings", settings)
        return study

    def run(self, trials: int, at_once: int, sweep: Sweep) -> bool:
        """Make the trials that are missing, and write the best settings.

        Args:
            trials: Number of trials in all, as far as there is something left to try.
            at_once: Trials at the same time; the later ones do not know of the earlier ones.
            sweep: Executes the runs.

        Returns:
            Whether all trials were made, and one of them has a score.
        """
        files.make_folder(self.folder)
        with RunFolder(self.folder):
            self.recover()
            return self.make(self.number(trials), at_once, sweep)

    def number(self, trials: int) -> int:
        """How many of so many trials there are to make: of choices alone no more than their combinations."""
        return min(trials, len(self.combinations) or trials)

    def recover(self) -> None:
        """Put right what an interrupted search has left: a lock, half a line, and trials without an end."""
        self.journal.with_name(f"{self.journal.name}.lock").unlink(missing_ok=True)
        if self.journal.exists():
            whole_lines = self.journal.read_bytes().rfind(b"\n") + 1
            os.truncate(self.journal, whole_lines)
        ended = self.trials(TrialState.COMPLETE, TrialState.PRUNED)
        if len(ended) < len(self.study.trials):  # Optuna cannot remove trials
            self.journal.unlink()  # after a kill here the same trials are asked for again, whose runs are finished
            del self.study
            self.study.add_trials(ended)

    def make(self, trials: int, at_once: int, sweep: Sweep) -> bool:
        """Make the trials that are missing; see ``run``."""
        done = len(self.trials(TrialState.COMPLETE, TrialState.PRUNED))
        if done >= trials:
            self.write()
        can_continue = not sweep.signal
        while can_continue and done < trials:
            batch = [self.ask(number) for number in range(done, min(done + at_once, trials))]
            runs = [
                run.numbered(f"trial {number}/{trials},")
                for number, trial in enumerate(batch, start=done + 1)
                for run in self.plan.runs(self.method, self.values(trial))
            ]
            folders = sweep.execute_all(runs)
            have_ended = all(folder or run.folder in sweep.refused for run, folder in zip(runs, folders, strict=True))
            can_continue = not sweep.signal and have_ended and (done > 0 or any(has_begun(run.folder) for run in runs))
            seeds = len(self.plan.seeds)
            for first, trial in zip(range(0, len(runs), seeds), batch, strict=True):
                if can_continue and all(folders[first : first + seeds]):
                    self.tell(trial, runs[first : first + seeds])
                else:
                    self.study.tell(trial, state=TrialState.PRUNED if can_continue else TrialState.FAIL)
            self.write()
            done += len(batch)
        return can_continue and bool(self.trials(TrialState.COMPLETE))

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The trials in some states; failed ones were interrupted."""
        return self.study.get_trials(deepcopy=False, states=states)

    def ask(self, number: int) -> optuna.Trial:
        """A new trial; its user attributes are its settings as the command line takes them."""
        self.study.sampler = TPESampler(seed=seed_of(self.plan.seeds[0], "trial", number) % 2**32)
        if self.combinations:
            self.study.enqueue_trial(self.combinations[number])
        trial = self.study.ask(dict(self.space))
        for key, value in self.values(trial).items():
            trial.set_user_attr(key, value)
        return trial

    def values(self, trial: optuna.Trial | FrozenTrial) -> dict[str, str]:
        """The settings of a trial."""
        return {key: word(trial.params[key], tried) for key, tried in self.space.items()}

    def tell(self, trial: optuna.Trial, runs: Sequence[PlannedRun]) -> None:
        """End a trial with the mean of its scores."""
        scores = list(map(score_of, runs))
        for seed, score in zip(self.plan.seeds, scores, strict=True):
            trial.set_user_attr(f"seed_{seed}", score)
        self.study.tell(trial, mean(scores))

    def best_values(self) -> dict[str, str]:
        """The best settings so far."""
        return self.values(self.study.best_trial)

    def best(self) -> str:
        """The best settings so far, in words, with their score."""
        best = self.study.best_trial
        return f"{', '.join(labels(self.best_values()))} with a validation score of {best.value:.{DIGITS}g}"

    @staticmethod
    def shown_score(run: PlannedRun) -> str:
        """What to print of a finished run: no test score, lest settings are chosen by it."""
        with suppress(PflError):  # which the search raises when it reads the score itself
            return f"validation score: {score_of(run):.{DIGITS}g}"
        return ""

    def write(self) -> None:
        """Write the table of the trials and the settings of the best one, and say which it is."""
        table = self.study.trials_dataframe(("number", "state", "value", "user_attrs"))
        table.columns = table.columns.str.removeprefix("user_attrs_")
        table["number"] += 1  # as the lines of the runs count
        files.write_text(table.to_csv(index=False), self.folder / "trials.csv")
        if self.trials(TrialState.COMPLETE):
            path = self.folder / BEST
            best = self.study.best_trial
            files.write_text(yaml.safe_dump(self.settings(self.best_values()), sort_keys=False), path)
            command = shlex.join(["pfl", "fit", "--config", str(path)])
            show(f"Best so far: {self.best()}, trial {best.number + 1} of {self.folder / 'trials.csv'}: {command}")
        else:
            show(f"No trial of {self.folder / 'trials.csv'} has a score so far")


def space_of(varied: Mapping[str, Sequence[str]]) -> Space:
    """What a search tries: ranges such as ``log:0.001..1``, and choices such as ``1,2,5``.

    Raises:
        PflError: If a range is none, or there is nothing to search.
    """
    space = {}
    for key, choices in varied.items():
        text = f"{key}={','.join(choices)}"
        is_range = ".." in choices[0] and "/" not in choices[0]  # which a path may have
        space[key] = number_range(text) if is_range else CategoricalDistribution(choices)
        if space[key].single():
            allowed = "several values, or a range, such as model.local.lr=log:0.001..1"
            raise PflError(f"search: {text} is a single value, which leaves nothing to search; allowed: {allowed}")
    return space


def number_range(text: str) -> Any:
    """Numbers between two ends, such as ``model.local.lr=log:0.001..1``: whole ones if both ends are."""
    try:
        scale, _, ends = text.partition("=")[2].rpartition(":")
        low, high = map(parse, ends.split(".."))
        if scale not in ("", "log") or not math.isfinite(high - low):
            raise ValueError
        kind = IntDistribution if isinstance(high - low, int) else FloatDistribution
        return kind(low, high, log=scale == "log")
    except (TypeError, ValueError):
        allowed = "low..high, or log:low..high from above 0, such as model.local.lr=log:0.001..1"
        raise PflError(f"search: {text} is not possible; allowed: {allowed}") from None


def word(value: Any, tried: Any) -> str:
    """What is tried as the command line takes it; real numbers have few digits."""
    if not isinstance(value, float):
        return str(value)
    return repr(min(max(float(f"{value:.{DIGITS}g}"), tried.low), tried.high))


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
