"""One run: a trainer with the callbacks that every run has, and what its processes do together before they train."""

import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import yaml
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.utilities import rank_zero_only

from pfl_lightning import files, processes
from pfl_lightning.callbacks import EvaluateStartAndEnd, EvaluationTable, MetricsTable, RunFigures, RunSummary
from pfl_lightning.callbacks.board import EVALUATED, Board, silence_writer_threads
from pfl_lightning.callbacks.evaluation import rounds_kept_on_resume
from pfl_lightning.callbacks.labels import label_of
from pfl_lightning.callbacks.monitors import CheckMonitors, check_monitor, monitored, score_kind_of
from pfl_lightning.callbacks.progress_bar import RoundProgressBar
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.callbacks.run_folder import continues
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.reading import loading_status
from pfl_lightning.errors import NOISE, PflError, one_line, printable
from pfl_lightning.federation.checkpoints import refusing
from pfl_lightning.report.run_files import CLIENTS, CONFIG, LABEL, METRICS
from pfl_lightning.runs.folders import LOCK, RunFolder, new_folder
from pfl_lightning.runs.loggers import begin_runs, end_runs, make_loggers
from pfl_lightning.runs.resume import Resume, refuse_changes, refuse_stopped, runs_folder, with_data_defaults
from pfl_lightning.runs.run_settings import RunParts
from pfl_lightning.runs.trainer_options import check_accelerator, check_callbacks
from pfl_lightning.score_kind import HEADLINED, headline

Command = Literal["fit", "validate", "test"]
CHATTER = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed")


class Session(pl.Callback):
    """One run of ``fit``, ``validate`` or ``test``, and the first callback of its trainer.

    When the processes are together it checks that the method and the data fit, makes the run's folder and its loggers,
    and writes the settings there.

    Args:
        command: Which of them.
        parts: What the run is made of.
        resume: The checkpoint that the run begins with.
        speaks: Whether it says what it does, and what came of it.
        verbose: Whether it says how, too.

    Attributes:
        trainer: The trainer.
        table: What each client got in an evaluation.
        run_folder: The folder of a run that trains, once it has begun; its other callbacks ask for it by ``folder_of``.

    Raises:
        PflError: If the settings are not possible, or others than the checkpoint's.
    """

    def __init__(
        self,
        command: Command,
        parts: RunParts,
        resume: Resume | None = None,
        speaks: bool = False,
        verbose: bool = False,
    ) -> None:
        check_accelerator(parts.settings["trainer"]["accelerator"])
        self.command = command
        self.method = parts.method
        self.data = parts.data
        self.settings = parts.settings
        self.resume = resume
        self.speaks = speaks
        self.logger = parts.trainer.get("logger")
        self.trains = command == "fit"
        self.shows_progress = parts.trainer.get("enable_progress_bar") is not False
        self.writes_folder = self.trains and not parts.trainer.get("fast_dev_run")
        self.run_folder: Path | None = None
        self.fingerprint = ""
        self.open_resources = ExitStack()
        check_callbacks(parts.callbacks, self.shows_progress)
        if resume:
            with refusing(resume.content):
                self._check_resume(resume, parts.callbacks)
        self.table = EvaluationTable(resume and resume.run)
        self.metrics = MetricsTable()
        fixed = {
            "logger": False,
            "callbacks": self._callbacks(parts, verbose),
            "default_root_dir": runs_folder(self.settings),
        }
        try:
            self.trainer = pl.Trainer(**{**parts.trainer, **fixed})
        except Exception as error:  # whatever Lightning raises about its options
            raise PflError(f"trainer: {one_line(error)}") from error
        self.profiles_in_folder = self.trainer.profiler.dirpath is None  # type: ignore[attr-defined]

    def _callbacks(self, parts: RunParts, verbose: bool) -> list[pl.Callback]:
        """The callbacks of the trainer, in the order in which they act."""
        callbacks: list[pl.Callback] = [self]
        if self.writes_folder and self.logger is not False:
            callbacks.append(self.metrics)
        callbacks.append(CheckMonitors())
        if not self.trains:
            callbacks.append(self.table)
        callbacks += [*parts.callbacks, EvaluateStartAndEnd(), RunFigures()]
        if self.speaks:
            callbacks.append(RunSummary(verbose))
        if self.shows_progress and not any(isinstance(callback, ProgressBar) for callback in parts.callbacks):
            callbacks.append(RoundProgressBar())
        return [*callbacks, parts.percentile_errors, parts.checkpoint]

    def run(self) -> None:
        """Train or evaluate.

        Raises:
            PflError: If the data cannot be loaded, or the method, the data, the checkpoint and the folder do not fit.
            Stopped: After the current round was saved, if the process gets a signal.
        """
        path = self.resume and self.resume.checkpoint
        evaluation = {} if self.trains else {"verbose": False}
        with self.open_resources, silence_writer_threads():
            if self.trainer.world_size > 1 and self.trainer.num_nodes == 1 and not self._was_started():
                self.meeting = processes.meet_here()
            pl.seed_everything(self.settings["seed_everything"], workers=True)
            if self.trainer.world_size == 1:  # otherwise the processes are not there yet
                is_shown = self.shows_progress and self.speaks
                with loading_status(type(self.data).__name__) if is_shown else nullcontext():
                    self.data.setup(self.command)
            before = signal.getsignal(signal.SIGINT)
            try:
                getattr(self.trainer, self.command)(self.method, datamodule=self.data, ckpt_path=path, **evaluation)
            except SystemExit as error:
                if isinstance(error.__context__, KeyboardInterrupt):  # which Lightning ignores from then on
                    signal.signal(signal.SIGINT, before)
                    raise KeyboardInterrupt from None
                raise
            except Exception as error:
                if self._lost:
                    raise self._lost from error
                raise

    @property
    def _lost(self) -> PflError | None:
        """The error if someone has removed the folder of this run, which then has no lock."""
        if self.run_folder is None or not self.trainer.is_global_zero or (self.run_folder / LOCK).exists():
            return None
        return PflError(f"'{self.run_folder}' was removed while this run wrote to it; start the run again")

    def _was_started(self) -> bool:
        """Whether a launcher has started this process, and all others."""
        launched: bool = self.trainer.strategy.cluster_environment.creates_processes_externally  # type: ignore[attr-defined]
        return launched

    @rank_zero_only
    def note(self, line: str) -> None:
        """Say something, in one process."""
        if self.speaks:
            sys.stderr.write(f"pfl: note: {printable(line)}\n")

    def _check_resume(self, resume: Resume, callbacks: Sequence[pl.Callback]) -> None:
        """Refuse to continue from a checkpoint with other settings, or with nothing left to do."""
        for line in refuse_changes(resume, self.settings):
            self.note(line)
        done, rounds = resume.content["global_step"], self.settings["trainer"]["max_steps"]
        if self.trains and rounds <= done:
            raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: more than the {done} rounds done")
        if self.trains:
            refuse_stopped(resume.content, self.settings, callbacks)

    # As a callback

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check the method and the data, and make the folder."""
        data = self.data
        if self.command == "validate" and "val" not in data.eval_splits:
            raise PflError("data.val_fraction: 0 leaves nothing to validate on; allowed: more than 0, or pfl test")
        check_data(data, self.resume)
        self.method.build_for(data, resumes=self.resume is not None)
        if self.method.pretrained_report:
            self.note(self.method.pretrained_report)
        if self.trains:
            for name in monitored(trainer.callbacks):  # type: ignore[attr-defined]
                key = "checkpoint" if name == self.settings["checkpoint"]["monitor"] else "trainer.callbacks"
                check_monitor(f"{key}.monitor", name, self.method, data)
            if self.writes_folder:
                self._open_folder(trainer)

    def _open_folder(self, trainer: pl.Trainer) -> None:
        """Make or find the run's folder, and its loggers."""
        result: Path | PflError | None = None
        if trainer.is_global_zero:
            try:
                result = self._enter_folder()
            except PflError as error:  # the others wait to hear of it
                result = error
        path = processes.broadcast(result)
        if isinstance(path, PflError):
            raise path
        assert path is not None, "the first process has sent it"
        self.run_folder = path
        self.metrics.open(path)
        rounds_kept = self.resume and rounds_kept_on_resume(self.resume.content, trainer.val_check_interval)
        trainer.loggers = make_loggers(self.logger, self.metrics, rounds_kept)
        self.open_resources.callback(end_runs, trainer.loggers)
        if self.profiles_in_folder:
            trainer.profiler.dirpath = path  # type: ignore[attr-defined]

    def _enter_folder(self) -> Path:
        """Lock the run's folder, and read its tables once, so that what is wrong with them is found."""
        folder = self.resume and self.resume.folder
        run_folder = RunFolder(folder) if folder else new_folder(runs_folder(self.settings))
        path = self.open_resources.enter_context(run_folder).path
        for table in (METRICS, CLIENTS):
            RoundCsv(path / table).read(self.resume.content["global_step"] if self.resume else 0)
        return path

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the settings of a new run before its first evaluation."""
        if trainer.ckpt_path is None:
            self._write(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the settings of a run that resumes when all else can."""
        if trainer.ckpt_path is not None:
            self._write(trainer)

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop if the folder is gone: checkpoints would make it anew, with half of the run."""
        if self._lost:
            raise self._lost

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop if the folder is gone; evaluations take longest."""
        self.on_train_batch_end()

    def _write(self, trainer: pl.Trainer) -> None:
        if self.run_folder is None or not trainer.is_global_zero:
            return
        is_new = not continues(trainer)
        config = yaml.safe_dump(with_data_defaults(self.settings), sort_keys=False)
        files.write_text(config, self.run_folder / CONFIG)
        files.write_text(yaml.safe_dump(label_of(trainer)._asdict()), self.run_folder / LABEL)
        begin_runs(trainer.loggers, self.settings, self.run_folder, is_new)
        for logger in trainer.loggers:
            if isinstance(logger, Board):
                logger.show_config(config, trainer.global_step)
                if is_new:
                    logger.show_row(self.settings, results_of(self.data))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings as plain values, and the fingerprint of the data, which is computed once."""
        self.fingerprint = self.fingerprint or self.data.fingerprint()
        checkpoint["fingerprint"] = self.fingerprint
        checkpoint["config"] = self.settings


def check_data(data: FederatedDataModule, resume: Resume | None) -> None:
    """Refuse other data than those of the checkpoint, or of another machine of this run.

    Raises:
        PflError: If the data are others.
    """
    place = getattr(data, data.files_option)
    held = f"data.{data.files_option}: '{place}'" if place else f"data: {type(data).__name__}"
    before = resume and resume.content.get("fingerprint")
    if before and before != data.fingerprint():
        raise PflError(f"{held} holds other data than the checkpoint was trained on; allowed: the same")
    if processes.count() > 1 and len(set(processes.all_gather(data.fingerprint()))) > 1:
        raise PflError(f"{held} holds different data on the machines of this run; allowed: the same")


def results_of(data: FederatedDataModule) -> list[str]:
    """Names of the results of a run beside its settings: the headlines, test first, their round, and the time."""
    splits = [split for split in reversed(HEADLINED) if split in data.eval_splits]
    return [*(headline(split, score_kind_of(data)) for split in splits), EVALUATED, "time/total"]


@contextmanager
def without_chatter() -> Iterator[None]:
    """Silence what Lightning and torch say about themselves."""
    levels = {name: logging.getLogger(name).level for name in CHATTER}
    with warnings.catch_warnings():
        for message in NOISE:
            warnings.filterwarnings("ignore", message=message)
        for name in CHATTER:
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
