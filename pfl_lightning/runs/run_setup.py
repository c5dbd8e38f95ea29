"""What a run does first, when its processes are together: it checks what it is made of, and makes its folder."""

import errno
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import yaml

from pfl_lightning import files, processes
from pfl_lightning.callbacks import MetricsTable
from pfl_lightning.callbacks.board import EVALUATED, Board
from pfl_lightning.callbacks.evaluation import rounds_kept_on_resume
from pfl_lightning.callbacks.labels import label_of
from pfl_lightning.callbacks.monitors import check_monitor, monitored
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.callbacks.run_folder import continues
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import MachineError, PflError, cause_of, causes
from pfl_lightning.federation.architectures import networks_report
from pfl_lightning.federation.checkpoints import Content, check_like, refusal
from pfl_lightning.federation.checks import unused_fine_tuning
from pfl_lightning.federation.own_training import report_of
from pfl_lightning.methods import Method
from pfl_lightning.report.run_files import CLIENTS, CONFIG, DATA, LABEL, METRICS
from pfl_lightning.runs.folders import LOCK, RunFolder, new_folder
from pfl_lightning.runs.loggers import begin_runs, end_runs, make_loggers
from pfl_lightning.runs.resume import Resume, changed_so_far, code_of, runs_folder, with_data_defaults
from pfl_lightning.runs.run_settings import RunParts
from pfl_lightning.score_kind import HEADLINED, headline

Command = Literal["fit", "validate", "test"]
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunSetup(pl.Callback):
    """The first callback of a run: checks that the method and the data fit, makes the run's folder and its loggers.

    It writes the settings into the folder and the checkpoints, and ends the run if its folder is removed.

    Args:
        command: What is run.
        parts: What the run is made of.
        resume: The checkpoint that the run begins with.
        note: Says a line to the user.

    Attributes:
        metrics: The table of what is logged.
        run_folder: The folder of a run that trains, once it has begun; its other callbacks ask for it by ``folder_of``.
        open_resources: What is closed when the run ends: the lock of its folder, and loggers.
    """

    def __init__(self, command: Command, parts: RunParts, resume: Resume | None, note: Callable[[str], None]) -> None:
        self.command = command
        self.parts = parts
        self.resume = resume
        self.note = note
        self.metrics = MetricsTable()
        self.run_folder: Path | None = None
        self.open_resources = ExitStack()
        self.fingerprint = ""
        self.changed = changed_so_far(resume, parts.settings) if resume else {}
        self.profiles_in_folder = getattr(parts.trainer.get("profiler"), "dirpath", None) is None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check the method and the data, and make the folder."""
        processes.notice_dead_links()
        method, data = self.parts.method, self.parts.data
        if self.command == "validate" and "val" not in data.eval_splits:
            raise PflError("data.val_fraction: 0 leaves nothing to validate on; allowed: more than 0, or pfl test")
        check_data(data, self.resume)
        method.build_for(data, resumes=self.resume is not None)
        own = report_of(method.own_training, method.local, data.eval_clients)
        reports = method.pretrained_report, networks_report(method), own, unused_fine_tuning(data, method)
        for report in filter(None, reports):
            self.note(report)
        if data.understood and self.resume is None:
            self.note(f"{type(data).__name__} was taken for\n{data.understood}")
        if self.command != "fit":
            return
        for name in monitored(trainer.callbacks):  # type: ignore[attr-defined]
            key = "checkpoint" if name == self.parts.settings["checkpoint"]["monitor"] else "trainer.callbacks"
            check_monitor(f"{key}.monitor", name, method, data)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
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
        trainer.loggers = make_loggers(self.parts.trainer.get("logger"), self.metrics, rounds_kept)
        self.open_resources.callback(end_runs, trainer.loggers)
        if self.profiles_in_folder:
            trainer.profiler.dirpath = path  # type: ignore[attr-defined]

    def _enter_folder(self) -> Path:
        """Lock the run's folder, and read its tables once, so that what is wrong with them is found."""
        folder = self.resume and self.resume.folder
        run_folder = RunFolder(folder) if folder else new_folder(runs_folder(self.parts.settings))
        path = self.open_resources.enter_context(run_folder).path
        for table in (METRICS, CLIENTS):
            RoundCsv(path / table).read(self.resume.content["global_step"] if self.resume else 0)
        return path

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the settings of a new run before its first evaluation."""
        if trainer.ckpt_path is None:
            self._write(trainer)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Check the loops; remember of how many optimizers there are states, since Lightning takes fewer."""
        if self.command == "fit":
            loop = checkpoint["loops"]["fit_loop"]
            check_like(checkpoint, "loops.fit_loop", loop, trainer.fit_loop.state_dict())
            self.rounds_of_loader = loop["state_dict"]["combined_loader"][0]["done"]
            self.states = {name: len(checkpoint[name]) for name in ("optimizer_states", "lr_schedulers")}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the settings of a run that resumes when all else can."""
        if self.resume is not None:
            self._check_restored(trainer, self.resume.content)
            self._write(trainer)

    def _check_restored(self, trainer: pl.Trainer, content: Content) -> None:
        """Refuse a checkpoint of which Lightning has left out something, or whose parts are of different rounds.

        Raises:
            PflError: If it has.
        """
        needed = {"optimizer_states": len(trainer.optimizers), "lr_schedulers": len(trainer.lr_scheduler_configs)}
        for name, count in needed.items():
            if self.states[name] != count:
                raise refusal(content, f"{name} must have {count} entries, got {self.states[name]}")
        rounds = content["global_step"]
        clock = self.parts.method.accounting.clock.rounds
        for part, counted in (("accounting", clock), ("loops", trainer.global_step), ("loops", self.rounds_of_loader)):
            if counted != rounds:
                raise refusal(content, f"{part} must count {rounds} rounds, as global_step does, got {counted}")

    def _write(self, trainer: pl.Trainer) -> None:
        if self.run_folder is None or not trainer.is_global_zero:
            return
        is_new = not continues(trainer)
        settings = self.parts.settings
        config = yaml.safe_dump(with_data_defaults(settings), sort_keys=False)
        files.write_text(config, self.run_folder / CONFIG)
        label = label_of(trainer)._replace(
            content=self.parts.data.content(), code=code_of(settings) or None, changed=self.changed or None
        )
        files.write_text(label.text, self.run_folder / LABEL)
        data = self.parts.data
        if data.understood:
            names = (f"  client {client} = {name}" for client, name in enumerate(data.client_names))
            files.write_text("\n".join([data.understood, *names]), self.run_folder / DATA)
        begin_runs(trainer.loggers, settings, self.run_folder, is_new)
        for logger in trainer.loggers:
            if isinstance(logger, Board):
                logger.show_config(config, trainer.global_step)
                if is_new:
                    logger.show_row(settings, results_of(self.parts.method, self.parts.data))

    def check_folder(self, trainer: pl.Trainer) -> None:
        """Refuse to go on if someone has removed the folder of this run, which then has no lock.

        Raises:
            MachineError: If it is gone.
        """
        if self.run_folder and trainer.is_global_zero and not (self.run_folder / LOCK).exists():
            raise MachineError(f"'{self.run_folder}' was removed while this run wrote to it; start the run again")

    def check_room(self, error: Exception) -> None:
        """Say where there was no room: neither TensorBoard nor a table says which file it could not write.

        Raises:
            MachineError: If that is why the run has ended.
        """
        full = next((e for e in causes(error) if isinstance(e, OSError) and e.errno in NO_ROOM), None)
        if full and self.run_folder and not cause_of(error):
            place = full.filename or self.run_folder
            problem = f"'{place}' cannot be written ({full.strerror})"
            what = "make room and repeat the command, with --ckpt_path last if a round was saved"
            raise MachineError(f"{problem}; {what}") from error

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Stop if the folder is gone: checkpoints would make it anew, with half of the run."""
        self.check_folder(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop if the folder is gone; evaluations take longest."""
        self.check_folder(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings as plain values, and the fingerprint of the data, which is computed once."""
        self.fingerprint = self.fingerprint or self.parts.data.fingerprint()
        checkpoint["fingerprint"] = self.fingerprint
        checkpoint["config"] = self.parts.settings
        checkpoint["changed"] = self.changed


def check_data(data: FederatedDataModule, resume: Resume | None) -> None:
    """Refuse other data than those of the checkpoint, or of another machine of this run.

    Raises:
        PflError: If the data are others.
    """
    place = getattr(data, data.files_option)
    held = f"data.{data.files_option}: '{place}'" if place else f"data: {type(data).__name__}"
    if resume and resume.content["fingerprint"] != data.fingerprint():
        raise PflError(f"{held} holds other data than the checkpoint was trained on; allowed: the same")
    if processes.count() > 1 and len(set(processes.all_gather(data.fingerprint()))) > 1:
        raise PflError(f"{held} holds different data on the machines of this run; allowed: the same")


def results_of(method: Method, data: FederatedDataModule) -> list[str]:
    """Names of the results of a run beside its settings: the headlines, test first, their round, and the time."""
    splits = [split for split in reversed(HEADLINED) if split in data.eval_splits]
    return [*(headline(split, method.task.score) for split in splits), EVALUATED, "time/total"]
