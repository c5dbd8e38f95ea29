"""One run: a trainer with the callbacks that every run has, and how it starts and ends."""

import inspect
import logging
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.utilities import rank_zero_only

from pfl_lightning import processes
from pfl_lightning.callbacks import EvaluateStartAndEnd, EvaluationTable, RunFigures, RunSummary
from pfl_lightning.callbacks.board import silence_writer_threads
from pfl_lightning.callbacks.monitors import CheckMonitors
from pfl_lightning.callbacks.progress_bar import RoundProgressBar
from pfl_lightning.data.reading import loading_status
from pfl_lightning.errors import NOISE, PflError, is_out_of_memory, one_line, printable
from pfl_lightning.federation.checkpoints import refusing
from pfl_lightning.runs.resume import Resume, changes_on_resume, other_code, refuse_stopped, runs_folder
from pfl_lightning.runs.run_settings import RunParts
from pfl_lightning.runs.run_setup import Command, RunSetup
from pfl_lightning.runs.trainer_options import check_callbacks

RESTORING = inspect.getfile(_CheckpointConnector)
CHATTER = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed")


class Session:
    """One run of ``fit``, ``validate`` or ``test``.

    Args:
        command: Which of them.
        parts: What the run is made of.
        resume: The checkpoint that the run begins with.
        summary: What is printed at the end; without it the run says nothing.

    Attributes:
        trainer: The trainer.
        run_setup: Its first callback, which knows the run's folder.
        table: What each client got in an evaluation.

    Raises:
        PflError: If the settings are not possible, or others than the checkpoint's.
    """

    def __init__(
        self,
        command: Command,
        parts: RunParts,
        resume: Resume | None = None,
        summary: RunSummary | None = None,
    ) -> None:
        self.command = command
        self.parts = parts
        self.resume = resume
        self.summary = summary
        self.shows_progress = parts.trainer.get("enable_progress_bar") is not False
        check_callbacks(parts.callbacks)
        if resume:
            with refusing(resume.content):
                self._check_resume(resume)
        self.run_setup = RunSetup(command, parts, resume, self.note)
        self.table = EvaluationTable(resume and resume.run)
        fixed = {
            "logger": False,
            "callbacks": self._callbacks(),
            "default_root_dir": runs_folder(parts.settings),
        }
        try:
            self.trainer = pl.Trainer(**{**parts.trainer, **fixed})
        except Exception as error:  # whatever Lightning raises about its options
            raise PflError(f"trainer: {one_line(error)}") from error

    def _callbacks(self) -> list[pl.Callback]:
        """The callbacks of the trainer, in the order in which they act."""
        callbacks: list[pl.Callback] = [self.run_setup]
        options = self.parts.trainer
        if self.command == "fit" and not options.get("fast_dev_run") and options.get("logger") is not False:
            callbacks.append(self.run_setup.metrics)
        callbacks.append(CheckMonitors())
        if self.command != "fit":
            callbacks.append(self.table)
        callbacks += [*self.parts.callbacks, EvaluateStartAndEnd(), RunFigures()]
        if self.summary:
            callbacks.append(self.summary)
        if self.shows_progress and not any(isinstance(callback, ProgressBar) for callback in self.parts.callbacks):
            callbacks.append(RoundProgressBar())
        return [*callbacks, *self.parts.of_sections.values()]

    def run(self) -> None:
        """Train or evaluate.

        Raises:
            PflError: If the data cannot be loaded, or the method, the data, the checkpoint and the folder do not fit.
            Stopped: After the current round was saved, if the process gets a signal.
        """
        data = self.parts.data
        options: dict[str, Any] = {"datamodule": data, "ckpt_path": self.resume and self.resume.checkpoint}
        if self.command != "fit":
            options["verbose"] = False
        with self.run_setup.open_resources, silence_writer_threads():
            if self.trainer.world_size > 1 and self.trainer.num_nodes == 1 and not self._was_started():
                self.meeting = processes.meet_here()
            pl.seed_everything(self.parts.settings["seed_everything"], workers=True)
            if self.trainer.world_size == 1:  # otherwise the processes are not there yet
                is_shown = self.shows_progress and self.summary
                with loading_status(type(data).__name__) if is_shown else nullcontext():
                    data.setup(self.command)
            before = signal.getsignal(signal.SIGINT)
            try:
                getattr(self.trainer, self.command)(self.parts.method, **options)
            except SystemExit as error:
                if isinstance(error.__context__, KeyboardInterrupt):  # which Lightning ignores from then on
                    signal.signal(signal.SIGINT, before)
                    raise KeyboardInterrupt from None
                raise
            except Exception as error:
                self.run_setup.check_folder(self.trainer)  # if it is gone, that is why
                self.run_setup.check_room(error)
                with refusing(self.resume.content) if self.resume and is_restoring(error) else nullcontext():
                    raise

    def _was_started(self) -> bool:
        """Whether a launcher has started this process, and all others."""
        launched: bool = self.trainer.strategy.cluster_environment.creates_processes_externally  # type: ignore[attr-defined]
        return launched

    @rank_zero_only
    def note(self, line: str) -> None:
        """Say something, in one process."""
        if self.summary:
            sys.stderr.write(f"pfl: note: {printable(line)}\n")

    def _check_resume(self, resume: Resume) -> None:
        """Refuse to continue from a checkpoint with other settings, or with nothing left to do."""
        settings = self.parts.settings
        for key, (before, now) in changes_on_resume(resume, settings).items():
            self.note(f"{key}: {before} in the checkpoint, {now} from now on")
        for module in other_code(resume.folder, settings) if resume.folder else ():
            self.note(f"{module}: it was other code before; the run goes on with what it is now")
        if self.command != "fit":
            return
        done = resume.content["global_step"]
        rounds = settings["trainer"]["max_steps"]
        if rounds <= done:
            raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: more than the {done} rounds done")
        refuse_stopped(resume.content, settings, self.parts.callbacks)


def is_restoring(error: BaseException) -> bool:
    """Whether an error has come while Lightning restored a checkpoint, for which it has no public hook."""
    frames = traceback.extract_tb(error.__traceback__)
    is_there = any(frame.filename == RESTORING and "restore" in frame.name for frame in frames)
    return is_there and not is_out_of_memory(error)


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
