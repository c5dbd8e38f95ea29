"""``pfl sweep --search``: settings with the best validation score, found by Optuna."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

import yaml

from pfl_lightning import files, report
from pfl_lightning.callbacks import RoundCheckpoint
from pfl_lightning.callbacks.checkpointing import LOWER_IS_BETTER
from pfl_lightning.cli.console import CONSOLE
from pfl_lightning.cli.planning import PlannedRun, check_keys, check_methods, planned_run
from pfl_lightning.cli.spaces import Space, candidates, distributions, space_of, words
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import seed_of
from pfl_lightning.settings import flat

STUDY, TRIALS, BEST = "study.log", "trials.csv", "best.yaml"
SCORED_BY = ("checkpoint.", "percentile_errors.", "data.val_", "data.test_", "data.choice_", "data.partition")
OPEN = {"seed_everything", "trainer.default_root_dir", "trainer.enable_progress_bar"}  # in the best settings


class Executor(Protocol):
    """What executes runs; ``signal`` is not 0 after it was asked to stop."""

    signal: int

    def execute_all(self, runs: Iterable[PlannedRun]) -> list[Path | None]:
        """Execute runs, and return the folders of those that are finished."""


class Search:
    """The search for the best settings of one method.

    A trial is the runs of some settings with every seed. Its score is the mean over the seeds of the score by which
    ``best.ckpt`` is chosen: the best evaluation of a run on validation samples. A trial with a run that fails, such as
    one that diverges, counts as worse than all others.

    Finished trials are kept in the file of a study; their runs are in the same folders as those of other sweeps. What a
    trial tries is a function of the first seed, its number and the trials before it, so that a search that was stopped
    goes on as if it had not been.

    Args:
        method: Settings file of the method.
        space: What to try.
        seeds: Values of ``seed_everything``.
        passed: Other arguments of ``pfl fit``.
        out: Folder of all runs.
    """

    def __init__(self, method: str, space: Space, seeds: Sequence[int], passed: Sequence[str], out: Path) -> None:
        self.method, self.space, self.passed, self.out = method, space, passed, out
        self.seeds = list(dict.fromkeys(map(int, seeds)))
        self.name = Path(method).stem
        self.folder = out / "search" / self.name
        self.settings = self.planned("", {}, self.seeds[:1])[0].settings

    def planned(self, number: str, values: Mapping[str, str], seeds: Sequence[int]) -> list[PlannedRun]:
        """The runs of some settings, one for each seed."""
        return [planned_run(number, self.method, values, seed, self.passed, self.out) for seed in seeds]

    def check(self) -> None:
        """Check what can be checked before a run starts.

        Raises:
            PflError: If there is no validation score to search by, or a search with other settings is in the folder.
            SystemExit: With code 2 if an end of a range, or a choice, is not possible.
        """
        monitor = self.settings["checkpoint"]["monitor"]
        if monitor is not None and not monitor.startswith("val/"):
            raise PflError(
                f"checkpoint.monitor: {monitor} is not possible with search; allowed: a name starting with val/"
            )
        data = self.settings["data"]["init_args"]
        if not (data.get("val_fraction", True) or data.get("val_clients", True)):
            raise PflError("data.val_fraction: 0 leaves nothing to search by; allowed: more than 0")
        for key, tried in candidates(self.space).items():
            for value in tried:
                self.planned("", {key: value}, self.seeds[:1])
        if (self.folder / STUDY).is_file():
            self.studies()

    def run(self, trials: int, at_once: int, sweep: Executor) -> bool:
        """Make the trials that are missing, and write what was found.

        Args:
            trials: Number of trials in all.
            at_once: Trials at the same time; the later ones do not know of the earlier ones.
            sweep: Executes the runs.

        Returns:
            Whether all trials were made, and one of them has a score.
        """
        kept, study = self.studies()
        while (made := len(kept.trials)) < trials and not sweep.signal:
            asked = [self.ask(study, number) for number in range(made, min(made + at_once, trials))]
            runs = [
                self.planned(f"trial {trial.number + 1}/{trials},", words(self.space, trial.params), self.seeds)
                for trial in asked
            ]
            folders = sweep.execute_all(run for of_trial in runs for run in of_trial)
            if sweep.signal:
                break
            finished = dict(zip((run.folder for of_trial in runs for run in of_trial), folders, strict=True))
            for trial, of_trial in zip(asked, runs, strict=True):
                if None not in (finished[run.folder] for run in of_trial):
                    scores, monitors = zip(*map(score_of, of_trial), strict=True)
                    trial.set_user_attr("scores", scores)
                    trial.set_user_attr("monitor", monitors[0])
                tell(study, trial)
                kept.add_trial(study.trials[trial.number])
            self.write(kept)
        return self.conclude(kept) and not sweep.signal

    def ask(self, study: Any, number: int) -> Any:
        """The settings of a trial."""
        from optuna.samplers import TPESampler

        study.sampler = TPESampler(seed=seed_of(self.seeds[0], "trial", number) % 2**32)
        return study.ask(distributions(self.space))

    def studies(self) -> tuple[Any, Any]:
        """The study in the folder, which has finished trials alone, and one in memory that continues it.

        Raises:
            PflError: If the study in the folder is that of another search.
        """
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(self.folder / STUDY)))
        kept = optuna.create_study(storage=storage, study_name=self.name, direction="maximize", load_if_exists=True)
        before, now = kept.user_attrs.get("settings"), json.loads(json.dumps(self.described()))
        if before is None:
            kept.set_user_attr("settings", now)
        for key in sorted(now.keys() | (before or now).keys()):
            was, is_now = (before or now).get(key), now.get(key)
            if was != is_now:
                change = f"{was} in '{self.folder / STUDY}', {is_now} now"
                raise PflError(f"{key}: {change}; keep the old value, or choose another --out")
        study = optuna.create_study(direction="maximize")
        study.add_trials(kept.trials)
        return kept, study

    def described(self) -> dict[str, Any]:
        """What must stay the same when a search goes on, by key."""
        space = {f"search {key}": str(values) for key, values in self.space.items()}
        settings = {key: value for key, value in flat(self.settings) if key not in OPEN | {"data.root"}}
        return {"seeds": self.seeds, **space, **settings}

    def write(self, study: Any) -> None:
        """Write the table of the trials, and the settings of the best one."""
        report.write_csv([self.row(trial) for trial in study.trials], self.folder / TRIALS)
        if best := best_of(study):
            (run,) = self.planned("", words(self.space, best.params), self.seeds[:1])
            files.write_text(yaml.safe_dump(without(run.settings, OPEN), sort_keys=False), self.folder / BEST)

    def row(self, trial: Any) -> dict[str, Any]:
        """A trial in the table; without scores if one of its runs has failed."""
        tried = {"trial": trial.number + 1, **words(self.space, trial.params)}
        scores = [as_logged(trial, score) for score in (trial.value, *trial.user_attrs.get("scores", []))]
        names = ["score", *(f"seed_{seed}" for seed in self.seeds)]
        return tried | dict.fromkeys(names) | dict(zip(names, scores, strict=False))

    def conclude(self, study: Any) -> bool:
        """Say what is best so far; return whether anything is."""
        if not (best := best_of(study)):
            return False
        settings = ", ".join(f"{key}={value}" for key, value in words(self.space, best.params).items())
        monitor = best.user_attrs["monitor"]
        CONSOLE.print(f"{self.name}: {settings}: {monitor} {as_logged(best, best.value):.4f}, trial {best.number + 1}")
        CONSOLE.print(f"All trials: {self.folder / TRIALS}")
        CONSOLE.print(f"Run the best: pfl fit --config {self.folder / BEST}")
        return True


def planned_searches(
    methods: Sequence[str], search: Sequence[str], seeds: Sequence[int], passed: Sequence[str], out: Path
) -> list[Search]:
    """A search for each method, if all of them are possible.

    Args:
        methods: Settings files of the methods.
        search: What to search, such as ``model.lr=log:0.001..1``.
        seeds: Values of ``seed_everything``.
        passed: Other arguments of ``pfl fit``.
        out: Folder of all runs.

    Raises:
        PflError: If Optuna is not installed, or a search is not possible.
        SystemExit: With code 2 if the settings of a run are wrong.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise PflError(f'search: needs pip install "pfl_lightning[search]" ({error})') from error
    space = space_of(search)
    check_methods(methods)
    check_keys(space, passed, "search")
    if evaluates := [key for key in space if key.startswith(SCORED_BY)]:
        raise PflError(
            f"search: {evaluates[0]} is not possible, trials are evaluated by it; allowed: settings of the training"
        )
    searches = [Search(method, space, seeds, passed, out) for method in methods]
    for each in searches:
        each.check()
    return searches


def score_of(run: PlannedRun) -> tuple[float, str]:
    """The score of a finished run's best evaluation, larger is better, and the name of what it is.

    Raises:
        PflError: If the run was not evaluated on validation samples.
    """
    resume = run.resume()
    assert resume is not None, "the run is finished"
    score = resume.content["callbacks"][RoundCheckpoint().state_key]["best_score"]
    monitor = resume.content["monitor"]
    if score == float("-inf"):
        raise PflError(
            f"search: {monitor} was not logged; allowed: data with validation samples, see data.val_fraction"
        )
    return score, monitor


def as_logged(trial: Any, score: float | None) -> float | None:
    """A score as the runs of a trial have logged it: losses are negated for the search."""
    is_negated = bool(LOWER_IS_BETTER & set(trial.user_attrs.get("monitor", "").split("/")))
    return -score if is_negated and score is not None else score


def tell(study: Any, trial: Any) -> None:
    """End a trial with the mean of its scores; without scores it counts as worse than those that have some."""
    from optuna.trial import TrialState

    scores = trial.user_attrs.get("scores")
    study.tell(trial, mean(scores) if scores else None, None if scores else TrialState.PRUNED)


def best_of(study: Any) -> Any:
    """The first of the trials with the largest score; None if no trial has one."""
    scored = [trial for trial in study.trials if trial.value is not None]
    return max(scored, key=lambda trial: trial.value, default=None)


def without(settings: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Settings without some, which are given by key, in sections or not."""
    left = {name: dict(inner) if isinstance(inner, Mapping) else inner for name, inner in settings.items()}
    for section, _, name in (key.partition(".") for key in keys):
        if not name:
            left.pop(section, None)
        elif isinstance(left.get(section), dict):
            left[section].pop(name, None)
    return left
