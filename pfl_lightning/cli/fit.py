"""``pfl fit``, ``pfl validate`` and ``pfl test``."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

import pfl_lightning
from pfl_lightning import files
from pfl_lightning.callbacks import (
    EvaluationTable,
    MetricsTable,
    PercentileErrors,
    RoundCheckpoint,
)
from pfl_lightning.callbacks.evaluation import lasting_rounds
from pfl_lightning.callbacks.monitors import Monitors, check_monitor, monitored
from pfl_lightning.callbacks.progress import RoundProgressBar
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.callbacks.run_folder import CLIENTS, METRICS, RunFolder, continues, folder_of, new_folder
from pfl_lightning.cli.callbacks import BESIDE, SPEAKING, idle_hooks, refuse_stopped
from pfl_lightning.cli.checks import check_file_seed, check_settings, one_seed
from pfl_lightning.cli.console import complain
from pfl_lightning.cli.loggers import loggers_of, tell_settings
from pfl_lightning.cli.parser import PflParser, plain
from pfl_lightning.cli.runs import Resume, expand_path, find_resume, names_run, refuse_changes, settings_along
from pfl_lightning.cli.trackers import libraries_within
from pfl_lightning.data import FederatedDataModule, federated
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.settings import run_name

DESCRIPTION = """Personalized federated learning on PyTorch Lightning: a method, a data set and who takes part.
To start: pfl fit --model FedRep --data Digits. To list the options of a method: pfl fit --model.help FedRep.
To evaluate a run again: pfl test RUN. To inspect or download data: pfl data. To run many experiments: pfl sweep.
To compare their results: pfl compare. To use a client's model elsewhere: pfl export."""

EVALUATE = """Evaluates a run: pfl {} RUN [options]. RUN is a run folder or a checkpoint; its settings come along, and
options change them. A table of all clients goes into the run's folder. Without RUN, --ckpt_path names a checkpoint."""


class SavedConfig(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder and the same settings into every checkpoint."""

    fingerprint = ""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any) -> None:
        config = config.clone()
        config.pop("ckpt_path", None)  # running the saved file starts a new run
        super().__init__(parser, config, **kwargs)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Do nothing yet: Lightning would write before it is known whether the run can start."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file of a new run before its first evaluation."""
        if trainer.ckpt_path is None:
            self._write(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file of a run that resumes when all else can."""
        if trainer.ckpt_path is not None:
            self._write(trainer)

    def _write(self, trainer: pl.Trainer) -> None:
        folder, is_new = folder_of(trainer), not continues(trainer)
        if trainer.is_global_zero:
            files.write_text(self.parser.dump(self.config, skip_unset=False), folder / "config.yaml")
            tell_settings(trainer.loggers, plain(self.parser, self.config), folder, is_new)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings as plain values, and the fingerprint of the data, which is computed once."""
        self.fingerprint = self.fingerprint or federated(trainer).fingerprint()
        checkpoint["fingerprint"] = self.fingerprint
        checkpoint["config"] = plain(self.parser, self.config)


class PflCLI(LightningCLI):
    """Method x data x trainer from YAML files and options.

    Args:
        args: Arguments; those of the process by default.
        run: Whether there are subcommands.
    """

    resume: Resume | None = None
    folder: RunFolder | None = None
    logger: Any = None
    added: Sequence[pl.Callback] = ()  # callbacks that no settings name
    parser_kind: type[PflParser] = PflParser
    speaks = True  # whether it says what it does, and what came of it

    def __init__(self, args: list[str] | None = None, run: bool = True) -> None:
        with ExitStack() as self.open:
            super().__init__(
                Method,
                FederatedDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                parser_class=self.parser_kind,
                parser_kwargs={
                    "version": pfl_lightning.__version__,
                    "description": DESCRIPTION,
                    **{name: {"description": EVALUATE.format(name)} for name in ("validate", "test")},
                },
                auto_configure_optimizers=False,
                seed_everything_default=1,
                save_config_callback=SavedConfig,
                trainer_defaults={
                    "max_steps": 100,
                    "max_epochs": -1,
                    "devices": 1,
                    "val_check_interval": 10,
                    "check_val_every_n_epoch": None,
                    "log_every_n_steps": 1,
                    "num_sanity_val_steps": 0,
                    "enable_model_summary": False,
                    "enable_autolog_hparams": False,
                    "default_root_dir": "runs",
                },
                args=args,
                run=run,
            )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's subcommands that make sense here."""
        known = LightningCLI.subcommands()
        return {name: known[name] | {"verbose", "weights_only"} for name in ("fit", "validate", "test")}

    def validate(self, **kwargs: Any) -> None:
        """Evaluate a checkpoint on the validation samples; ``RunSummary`` prints the table."""
        if "val" not in self.datamodule.judged_splits:
            raise PflError("data.val_fraction: 0 leaves nothing to validate on; allowed: more than 0, or pfl test")
        self.trainer.validate(**kwargs, verbose=False)

    def test(self, **kwargs: Any) -> None:
        """Evaluate a checkpoint on the test samples; ``RunSummary`` prints the table."""
        self.trainer.test(**kwargs, verbose=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The data set's seed follows ``seed_everything``; FedAvg on the embedded digits needs no option at all."""
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=one_seed)
        parser.set_defaults({"model": {"class_path": "FedAvg"}, "data": {"class_path": "Digits"}})
        parser.add_lightning_class_args(RoundCheckpoint, "checkpoint")
        parser.add_lightning_class_args(PercentileErrors, "percentile_errors")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse arguments, of which one would be lost: the data set's seed is that of ``seed_everything``."""
        words = sys.argv[1:] if args is None else args
        if own := [word for word in words if str(word).partition("=")[0] in ("--data.seed", "--data.init_args.seed")]:
            raise PflError(
                f"{own[0]} is not possible: the data's seed follows seed_everything; allowed: --seed_everything"
            )
        super().parse_arguments(parser, self._with_run(words) if names_run(words) else args)
        given = self.config.get(self.config.get("subcommand") or "", self.config)
        for file in filter(None, given.get("config") or ()):  # null for settings that are in no file
            check_file_seed(str(file), given.seed_everything)

    def _with_run(self, words: list[str]) -> list[str]:
        """The words of ``pfl test RUN`` with the run's settings in its place, before the options that change them."""
        command, run, *options = words
        if any(word.partition("=")[0] == "--ckpt_path" for word in options):
            raise PflError(f"ckpt_path: not possible beside '{run}'; allowed: one of them")
        self.resume = find_resume(run, Path(), training=False)
        cast(PflParser, self._parser(command)).source = run
        settings = json.dumps(settings_along(self.resume))
        return [command, f"--config={settings}", *options, f"--ckpt_path={self.resume.checkpoint}"]

    def _parse_ckpt_path(self) -> None:
        """Lightning would let the checkpoint's settings beat the command line, silently."""

    def before_instantiate_classes(self) -> None:
        """Find the checkpoint before anything is built, and refuse what a resumed run cannot change."""
        config = self.config[self.subcommand] if self.subcommand else self.config
        check_settings(config)
        if self.subcommand is None:  # nothing is trained or resumed
            return
        if config.ckpt_path is None:
            if self.subcommand != "fit":
                raise PflError(f"pfl {self.subcommand}: a run is missing; allowed: its folder, or a checkpoint of it")
            return
        self.resume = self.resume or find_resume(config.ckpt_path, self.runs_folder, self.subcommand == "fit")
        config.ckpt_path = str(self.resume.checkpoint)
        settings = plain(self._parser(self.subcommand), self.written(config))
        done = self.resume.content["global_step"]
        if self.subcommand == "fit" and (rounds := config.trainer.max_steps) <= done:
            raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: more than the {done} rounds done")
        if self.subcommand == "fit" and self.resume.folder and not config.trainer.fast_dev_run:
            self.folder = self.open.enter_context(RunFolder(self.resume.folder))
            for table in (METRICS, CLIENTS):
                RoundCsv(self.folder.path / table).read(done)
        for line in refuse_changes(self.resume.content.get("config", {}), settings):
            if self.speaks:
                complain(line, "note")
        if self.subcommand == "fit":
            refuse_stopped(self.resume.content, settings)

    def written(self, config: Namespace) -> Namespace:
        """The settings as files and checkpoints have them."""
        return config

    @property
    def runs_folder(self) -> Path:
        """Where the runs of this method and data set are."""
        config = self.config[self.subcommand]
        return expand_path(config.trainer.default_root_dir, "trainer.default_root_dir") / run_name(config)

    def instantiate_classes(self) -> None:
        """Build everything; loggers last, since they write into the run's folder, which is made last."""
        trainer = self.config[self.subcommand].trainer
        self.logger, trainer.logger = trainer.logger, False
        super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Build data and network first, so that a run that cannot start leaves no folder; add the usual callbacks."""
        self.datamodule.prepare_data()
        self.datamodule.setup(self.subcommand)
        self.check_data()
        self.model.build_for(self.datamodule, resumes=self.resume is not None)
        if self.model.taken and self.speaks:
            complain(self.model.taken, "note")
        self.config[self.subcommand].trainer.logger = self.logger
        given = self.config_init[self.subcommand].trainer
        callbacks = [given.callbacks] if isinstance(given.callbacks, pl.Callback) else list(given.callbacks or [])
        if self.subcommand == "fit":
            self._check_monitors(callbacks)
            callbacks = [Monitors(), *callbacks]
        if self.subcommand == "fit" and not given.fast_dev_run:
            self.folder = self.folder or self.open.enter_context(new_folder(self.runs_folder))
            rounds = lasting_rounds(self.resume.content) if self.resume else None
            self.open.enter_context(libraries_within(self.folder.path))
            kwargs["logger"] = loggers_of(self.logger, self.folder.path, rounds)
            kwargs["default_root_dir"] = self.folder.path
            callbacks += [self.folder, *(table for table in kwargs["logger"] if isinstance(table, MetricsTable))]
        if self.subcommand != "fit" and self.resume:
            callbacks.append(EvaluationTable(self.resume.run))
        has_bar = given.enable_progress_bar is False or any(isinstance(each, ProgressBar) for each in callbacks)
        callbacks += [*self.added, *(kind() for kind in (*BESIDE, *(SPEAKING if self.speaks else ())))]
        callbacks += [] if has_bar else [RoundProgressBar()]
        kwargs["callbacks"] = callbacks
        trainer = super().instantiate_trainer(**kwargs)
        if self.folder:  # else profilers ask the first logger, which may have no folder
            trainer.profiler.dirpath = trainer.profiler.dirpath or self.folder.path  # type: ignore[attr-defined]
        return trainer

    def _check_monitors(self, callbacks: list[pl.Callback]) -> None:
        """Refuse callbacks that would select on test data; say which hooks are never called."""
        names = {"checkpoint.monitor": self.config_init[self.subcommand].checkpoint.monitor or ""}
        for key, name in [*names.items(), *(("trainer.callbacks.monitor", name) for name in monitored(callbacks))]:
            check_monitor(key, name, self.model, self.datamodule)
        for line in idle_hooks(callbacks):
            complain(line, "warning")

    def check_data(self) -> None:
        """Refuse other data than those of the checkpoint."""
        before = self.resume and self.resume.content.get("fingerprint")
        if before and not self.datamodule.new_clients and before != self.datamodule.fingerprint():
            option, name = self.datamodule.files_option, type(self.datamodule).__name__
            place = getattr(self.datamodule, option)
            held = f"data.{option}: '{place}'" if place else f"data: {name}"
            raise PflError(f"{held} holds other data than the checkpoint was trained on; allowed: the same")
