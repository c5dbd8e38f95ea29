"""One run: a trainer with the callbacks that every run has, and what its processes do together before they train."""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

import lightning.pytorch as pl
import yaml
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.utilities import rank_zero_only

from pfl_lightning import files, processes
from pfl_lightning.callbacks import EvaluationTable, MetricsTable, RunSummary
from pfl_lightning.callbacks.board import boards
from pfl_lightning.callbacks.evaluation import lasting_rounds
from pfl_lightning.callbacks.labels import label_of
from pfl_lightning.callbacks.monitors import CheckMonitors, check_monitor, monitored, quantity_of
from pfl_lightning.callbacks.progress import RoundProgressBar
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.callbacks.run_folder import CLIENTS, METRICS, RunFolder, continues, new_folder
from pfl_lightning.checks import BESIDE, check_callbacks, check_settings
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.progress import loading
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.loggers import begin, end, loggers_of
from pfl_lightning.methods import Method
from pfl_lightning.quantity import HEADLINED, headline
from pfl_lightning.report.run_files import LABEL
from pfl_lightning.runs import Resume, refuse_changes, refuse_stopped, runs_folder

Command = Literal["fit", "validate", "test"]
CHATTER = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed")


class Session:
    """One run of ``fit``, ``validate`` or ``test``.

    Args:
        command: Which of them.
        method: The method, which is not built yet.
        data: The data set.
        settings: All settings of the run, as plain values.
        options: Options of the trainer.
        callbacks: The user's callbacks.
        usual: Those of every run that have options.
        resume: The checkpoint that the run begins with.
        speaks: Whether it says what it does, and what came of it.
        verbose: Whether it says how, too.

    Attributes:
        trainer: The trainer.
        table: What each client got in an evaluation.
        folder: The folder of a run that trains, once it has begun.

    Raises:
        PflError: If the settings are not possible, or others than the checkpoint's.
    """

    folder: RunFolder | None = None

    def __init__(
        self,
        command: Command,
        method: Method,
        data: FederatedDataModule,
        settings: dict[str, Any],
        options: Mapping[str, Any],
        callbacks: Sequence[pl.Callback],
        usual: Sequence[pl.Callback],
        resume: Resume | None = None,
        speaks: bool = False,
        verbose: bool = False,
    ) -> None:
        check_settings(settings)
        self.command, self.method, self.data, self.settings = command, method, data, settings
        self.resume, self.speaks, self.open = resume, speaks, ExitStack()
        self.trains, self.shows = command == "fit", options.get("enable_progress_bar") is not False
        check_callbacks(callbacks, self.shows)
        if resume:
            self._check_resume(resume)
        self.table = EvaluationTable(resume and resume.run)
        own: list[pl.Callback] = [RunSummary(verbose)] if speaks else []
        if self.shows and not any(isinstance(callback, ProgressBar) for callback in callbacks):
            own.append(RoundProgressBar())
        extra = [CheckMonitors()] if self.trains else [self.table]
        self.logger, place = options.get("logger"), runs_folder(settings)
        every = [RunStart(self), *extra, *callbacks, *(kind() for kind in BESIDE), *own, *usual]
        try:
            self.trainer = pl.Trainer(**{**options, "logger": False, "callbacks": every, "default_root_dir": place})
        except Exception as error:  # whatever Lightning raises about its options
            raise PflError(f"trainer: {one_line(error)}") from error
        self.profiles_here = self.trainer.profiler.dirpath is None  # type: ignore[attr-defined]

    def run(self) -> None:
        """Train or evaluate.

        Raises:
            PflError: If the data cannot be loaded, or the method, the data, the checkpoint and the folder do not fit.
            Stopped: After the current round was saved, if the process gets a signal.
        """
        path = self.resume and self.resume.checkpoint
        evaluation = {} if self.trains else {"verbose": False}
        with self.open:
            pl.seed_everything(self.settings["seed_everything"], workers=True)
            if self.trainer.world_size == 1:  # otherwise the processes are not there yet
                shows = self.shows and self.speaks
                with loading(type(self.data).__name__) if shows else nullcontext():
                    self.data.setup(self.command)
            getattr(self.trainer, self.command)(self.method, datamodule=self.data, ckpt_path=path, **evaluation)

    def note(self, line: str) -> None:
        """Say something, in one process."""
        if self.speaks:
            _say(f"pfl: note: {line}")

    def _check_resume(self, resume: Resume) -> None:
        """Refuse to continue from a checkpoint with other settings, or with nothing left to do."""
        done, rounds = resume.content["global_step"], self.settings["trainer"]["max_steps"]
        if self.trains and rounds <= done:
            raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: more than the {done} rounds done")
        for line in refuse_changes(resume.content.get("config", {}), self.settings):
            self.note(line)
        if self.trains:
            refuse_stopped(resume.content, self.settings)


class RunStart(pl.Callback):
    """Begins a run when its processes are together: checks, the run's folder, its loggers and its settings.

    It comes first: it makes the folder when the method and the data are known to fit, and then the loggers.

    Args:
        session: The run.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.fingerprint = ""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check the method and the data, and make the folder."""
        session, data = self.session, self.session.data
        if session.command == "validate" and "val" not in data.eval_splits:
            raise PflError("data.val_fraction: 0 leaves nothing to validate on; allowed: more than 0, or pfl test")
        check_data(data, session.resume)
        session.method.build_for(data, resumes=session.resume is not None)
        if session.method.taken:
            session.note(session.method.taken)
        if session.trains:
            monitor = session.settings["checkpoint"]["monitor"] or ""
            callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
            others = [name for name in monitored(callbacks) if name != monitor]
            for key, name in [
                ("checkpoint.monitor", monitor),
                *(("trainer.callbacks.monitor", name) for name in others),
            ]:
                check_monitor(key, name, session.method, data)
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                self._open_folder(trainer, callbacks)

    def _open_folder(self, trainer: pl.Trainer, callbacks: list[pl.Callback]) -> None:
        """Make or find the run's folder, and its loggers; both take part in the run from here on."""
        session, resume = self.session, self.session.resume
        folder: RunFolder | None = None
        refused: PflError | None = None
        if trainer.is_global_zero:
            try:
                found = (
                    RunFolder(resume.folder) if resume and resume.folder else new_folder(runs_folder(session.settings))
                )
                folder = session.open.enter_context(found)
                for table in (METRICS, CLIENTS):
                    RoundCsv(found.path / table).read(resume.content["global_step"] if resume else 0)
            except PflError as error:  # the others wait to hear of it
                refused = error
        place, refused = processes.from_first((folder and folder.path, refused))
        if refused:
            raise refused
        session.folder = folder or RunFolder(cast(Path, place))
        path = session.folder.path
        rounds = lasting_rounds(resume.content) if resume else None
        trainer.loggers = loggers_of(session.logger, path, rounds)
        session.open.callback(end, trainer.loggers)
        after = callbacks.index(self) + 1
        callbacks[after:after] = [session.folder, *(each for each in trainer.loggers if isinstance(each, MetricsTable))]
        if session.profiles_here:
            trainer.profiler.dirpath = path  # type: ignore[attr-defined]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the settings of a new run before its first evaluation."""
        if trainer.ckpt_path is None:
            self._write(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the settings of a run that resumes when all else can."""
        if trainer.ckpt_path is not None:
            self._write(trainer)

    def _write(self, trainer: pl.Trainer) -> None:
        session, folder = self.session, self.session.folder
        if folder is None:
            return
        is_new = not continues(trainer)
        if trainer.is_global_zero:
            text = yaml.safe_dump(session.settings, sort_keys=False)
            files.write_text(text, folder.path / "config.yaml")
            files.write_text(yaml.safe_dump(label_of(trainer)._asdict()), folder.path / LABEL)
            begin(trainer.loggers, session.settings, folder.path, is_new)
            for board in boards(trainer):
                board.show_config(text, trainer.global_step)
                if is_new:
                    board.show_row(session.settings, results_of(session.data))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings as plain values, and the fingerprint of the data, which is computed once."""
        self.fingerprint = self.fingerprint or self.session.data.fingerprint()
        checkpoint["fingerprint"] = self.fingerprint
        checkpoint["config"] = self.session.settings


def check_data(data: FederatedDataModule, resume: Resume | None) -> None:
    """Refuse other data than those of the checkpoint, or of another machine of this run.

    Raises:
        PflError: If the data are others.
    """
    place = getattr(data, data.files_option)
    held = f"data.{data.files_option}: '{place}'" if place else f"data: {type(data).__name__}"
    before = resume and resume.content.get("fingerprint")
    if before and not data.new_clients and before != data.fingerprint():
        raise PflError(f"{held} holds other data than the checkpoint was trained on; allowed: the same")
    if processes.count() > 1 and len(set(processes.gathered(data.fingerprint()))) > 1:
        raise PflError(f"{held} holds different data on the machines of this run; allowed: the same")


def results_of(data: FederatedDataModule) -> list[str]:
    """Names of the results of a run beside its settings: the headlines, test first, and simulated seconds."""
    splits = [split for split in reversed(HEADLINED) if split in data.eval_splits]
    return [*(headline(split, quantity_of(data)) for split in splits), "time/total"]


@rank_zero_only
def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def without_chatter() -> Iterator[None]:
    """Silence Lightning's messages about itself."""
    levels = {name: logging.getLogger(name).level for name in CHATTER}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
        for name in CHATTER:
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
