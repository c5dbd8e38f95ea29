"""Runs from Python, with the numbers and files of ``pfl fit``."""

from collections.abc import Sequence
from os import fspath
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from pfl_lightning.callbacks import PercentileErrors, RoundCheckpoint
from pfl_lightning.callbacks.progress_bar import in_notebook
from pfl_lightning.callbacks.round_checkpoint import Stopped
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.objects import changed_arguments, clone, to_settings
from pfl_lightning.runs.resume import find_resume, runs_folder
from pfl_lightning.runs.run import Run
from pfl_lightning.runs.run_settings import (
    TRAINER_DEFAULTS,
    RunParts,
    check_objects,
    complete_settings,
    make_parts,
    parse_words,
    run_parser,
)
from pfl_lightning.runs.session import Session, without_chatter
from pfl_lightning.runs.trainer_options import refuse_several_processes
from pfl_lightning.settings.parser import strict_parsing
from pfl_lightning.settings.values import flat

ADVICE = "fit(resume=True) continues"


class Experiment:
    """A method, a data set and a number of rounds: what ``pfl fit`` runs, from Python.

    Every run constructs the method, the data set and the callbacks of this package again from their arguments, so the
    same experiment gives the same numbers again, and those of the same command. Nothing is printed, but on a signal; a
    notebook shows a progress bar.
    What settings cannot express, such as arrays and functions, is used as it is.

    Args:
        method: The method.
        data: The data set.
        rounds: Communication rounds.
        seed: ``seed_everything``, which the data set's own seed follows.
        callbacks: Callbacks in addition to those of every run. Others than this package's, such as your own, are used
            as they are, and are not among the settings.
        folder: Where run folders are: ``<folder>/<Method>-<Data>/version_N``.
        checkpoint: When checkpoints are saved.
        percentile_errors: Which percentiles of the clients are logged.
        trainer: Other options of the trainer, such as ``val_check_interval=5`` or ``enable_progress_bar=False``.

    Examples:
        >>> from pfl_lightning.client import LocalTraining
        >>> from pfl_lightning.data import Digits
        >>> from pfl_lightning.methods import FedRep
        >>> method = FedRep(local=LocalTraining(lr=0.05))
        >>> experiment = Experiment(method, Digits(num_clients=10), rounds=20)
        >>> experiment.settings["model"]["init_args"]["local"]["lr"]
        0.05
    """

    def __init__(
        self,
        method: Method,
        data: FederatedDataModule,
        rounds: int = 100,
        *,
        seed: int = 1,
        callbacks: pl.Callback | Sequence[pl.Callback] = (),
        folder: str | Path = "runs",
        checkpoint: RoundCheckpoint | None = None,
        percentile_errors: PercentileErrors | None = None,
        **trainer: Any,
    ) -> None:
        callbacks = [callbacks] if isinstance(callbacks, pl.Callback) else list(callbacks)
        check_objects(method, data, callbacks)
        if (changed_arguments(data) or {}).get("seed", seed) != seed:
            raise PflError("data.seed follows the experiment's; use Experiment(seed=...)")
        if repeated := {"max_steps", "default_root_dir"} & trainer.keys():
            raise PflError(f"trainer.{min(repeated)}: set by Experiment(rounds=..., folder=...)")
        self.method = method
        self.data = data
        self.callbacks = callbacks
        self.of_sections = {
            "checkpoint": checkpoint or RoundCheckpoint(),
            "percentile_errors": percentile_errors or PercentileErrors(),
        }
        self.trainer = {"enable_progress_bar": in_notebook(), **trainer}
        self.trainer |= {"max_steps": rounds, "default_root_dir": fspath(folder)}
        self.seed = seed
        self._settings: dict[str, Any] | None = None

    @classmethod
    @strict_parsing()
    def from_settings(cls, *words: str) -> "Experiment":
        """The experiment of settings files and options.

        Args:
            words: Settings files, by paths or by names such as ``quickstart``, and options as on the command line, each
                as one word, such as ``--model.local.lr=0.1``.

        Raises:
            PflError: If they are wrong.
        """
        options = [word if word.startswith("-") else f"--config={word}" for word in words]
        parser = run_parser()
        parsed = parse_words(parser, ["--trainer.enable_progress_bar=false", *options])
        parts = make_parts(parser, parsed)
        trainer = dict(parts.trainer)
        experiment = cls(
            parts.method,
            parts.data,
            trainer.pop("max_steps"),
            seed=parts.settings["seed_everything"],
            callbacks=parts.callbacks,
            folder=trainer.pop("default_root_dir"),
            **parts.of_sections,
            **trainer,
        )
        experiment._settings = parts.settings
        return experiment

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, as ``config.yaml`` has them.

        Raises:
            PflError: If one is not possible.
        """
        if self._settings is not None:
            return self._settings
        callbacks = [to_settings(callback) for callback in self.callbacks if _is_ours(callback)]
        changed = {
            "seed_everything": self.seed,
            "model": to_settings(self.method),
            "data": to_settings(self.data),
            "trainer": {**to_settings(self.trainer), "callbacks": callbacks or None},
            **{name: to_settings(changed_arguments(callback)) for name, callback in self.of_sections.items()},
        }
        settings = complete_settings(changed)
        parsed = dict(flat(settings))
        for key, value in flat(changed):
            if isinstance(value, str) and parsed.get(key) != value:
                raise PflError(f"{key} must be a number or an object in a program, got the text '{value}'")
        return settings

    def fit(self, resume: bool = False) -> Run:
        """Train, in the next run folder.

        Args:
            resume: Continue the newest run in its folder instead.

        Raises:
            PflError: If the settings are wrong, or there is nothing to continue.
            KeyboardInterrupt: After the current round was saved, if the process is interrupted; it names the folder.
        """
        settings = self.settings
        refuse_several_processes(settings, "fit")
        if settings["trainer"]["fast_dev_run"]:
            raise PflError("trainer.fast_dev_run must be False in a program, since it leaves no run; use pfl fit")
        checkpoint = find_resume("last", runs_folder(settings)) if resume else None
        parts = self._fresh_parts(settings)
        with without_chatter():
            parts.of_sections["checkpoint"].advice = ADVICE
            session = Session("fit", parts, checkpoint)
            try:
                session.run()
            except Stopped:
                raise KeyboardInterrupt(f"the run is saved in '{session.run_setup.run_folder}'; {ADVICE}") from None
        if parts.of_sections["checkpoint"].interrupted:
            raise KeyboardInterrupt("the run is complete and saved")
        folder = session.run_setup.run_folder
        assert folder is not None, "a run that has ended has a folder"
        return Run(folder, self.method, self.data)

    def _fresh_parts(self, settings: dict[str, Any]) -> RunParts:
        """What a run is made of, with objects that nothing was done with."""
        return RunParts(
            settings,
            clone(self.method),
            clone(self.data, seed=self.seed),
            [clone(callback) if _is_ours(callback) else callback for callback in self.callbacks],
            {name: clone(callback) for name, callback in self.of_sections.items()},
            {**TRAINER_DEFAULTS, **self.trainer},
        )


def _is_ours(callback: pl.Callback) -> bool:
    return type(callback).__module__.startswith("pfl_lightning.")
