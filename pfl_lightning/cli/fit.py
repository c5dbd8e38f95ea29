"""``pfl fit``, ``pfl validate`` and ``pfl test``."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import pfl_lightning
from pfl_lightning import processes
from pfl_lightning.callbacks import (
    EvaluationTable,
    MetricsTable,
    PercentileErrors,
    RoundCheckpoint,
    RunSummary,
)
from pfl_lightning.callbacks.evaluation import lasting_rounds
from pfl_lightning.callbacks.monitors import CheckMonitors, check_monitor, monitored
from pfl_lightning.callbacks.progress import RoundProgressBar
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.callbacks.run_folder import CLIENTS, METRICS, RunFolder, new_folder
from pfl_lightning.cli.aliases import true_options
from pfl_lightning.cli.callbacks import BESIDE, idle_hooks, refuse_stopped
from pfl_lightning.cli.checks import check_file_seed, check_settings, one_seed
from pfl_lightning.cli.console import complain
from pfl_lightning.cli.crew import HERE, Crew, OrderlyEnd, agree, is_alone
from pfl_lightning.cli.help_texts import usage
from pfl_lightning.cli.loggers import loggers_of
from pfl_lightning.cli.parser import PflParser, plain
from pfl_lightning.cli.runs import Resume, expand_path, find_resume, names_run, refuse_changes, settings_along
from pfl_lightning.cli.saved_config import SavedConfig
from pfl_lightning.cli.trackers import libraries_within
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.progress import loading
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.settings import flat, run_name

DESCRIPTION = """Personalized federated learning on PyTorch Lightning: a method, a data set and who takes part.
To start: pfl fit --model FedRep --data Digits. To list the options of a method: pfl fit --model.help FedRep.
To evaluate a run again: pfl test RUN. To inspect or download data: pfl data. To run many experiments: pfl sweep.
To compare their results: pfl compare. To use a client's model elsewhere: pfl export."""

EVALUATE = """Evaluates a run: pfl {} RUN [options]. RUN is a run folder or a checkpoint; its settings come along, and
options change them. A table of all clients goes into the run's folder. Without RUN, --ckpt_path names a checkpoint."""


class PflCLI(LightningCLI):
    """Method x data x trainer from YAML files and options.

    Args:
        args: Arguments; those of the process by default.
        run: Whether there are subcommands.
        crew: The processes of the command; None in a program, which has only one.
    """

    resume: Resume | None = None
    folder: RunFolder | None = None
    logger: Any = None
    added: Sequence[pl.Callback] = ()  # callbacks that no settings name
    parser_kind: type[PflParser] = PflParser
    speaks = True  # whether it says what it does, and what came of it
    verbose = False  # whether it says how, too

    def __init__(self, args: list[str] | None = None, run: bool = True, crew: Crew | None = None) -> None:
        self.crew = crew
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
                    "fit": {"usage": usage("fit")},
                    **{
                        name: {"description": EVALUATE.format(name), "usage": usage(name)}
                        for name in ("validate", "test")
                    },
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
        if "val" not in self.datamodule.eval_splits:
            raise PflError("data.val_fraction: 0 leaves nothing to validate on; allowed: more than 0, or pfl test")
        self.trainer.validate(**kwargs, verbose=False)

    def test(self, **kwargs: Any) -> None:
        """Evaluate a checkpoint on the test samples; ``RunSummary`` prints the table."""
        self.trainer.test(**kwargs, verbose=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The data set's seed follows ``seed_everything``; FedAvg on the embedded digits needs no option at all."""
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=one_seed)
        parser.set_defaults({"model": {"class_path": "FedAvg"}, "data": {"class_path": "Digits"}})
        parser.add_argument("-v", "--verbose", action="store_true", help="Say at the end how each layer was trained.")
        parser.add_lightning_class_args(RoundCheckpoint, "checkpoint")
        parser.add_lightning_class_args(PercentileErrors, "percentile_errors")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse arguments, of which one would be lost: the data set's seed is that of ``seed_everything``."""
        words = list(true_options(sys.argv[1:] if args is None else args, parser.error))
        words = ["--help" if word == "--help.all" else word for word in words]
        if own := [word for word in words if str(word).partition("=")[0] in ("--data.seed", "--data.init_args.seed")]:
            raise PflError(
                f"{own[0]} is not possible: the data's seed follows seed_everything; allowed: --seed_everything"
            )
        super().parse_arguments(parser, self._with_run(words) if names_run(words) else words)
        given = self.given
        self.verbose = given.pop("verbose")  # no setting of the run
        for file in filter(None, given.get("config") or ()):  # null for settings that are in no file
            check_file_seed(str(file), given.seed_everything)

    @property
    def given(self) -> Namespace:
        """The parsed settings, of the subcommand if there is one."""
        return cast(Namespace, self.config.get(self.config.get("subcommand") or "", self.config))

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
        self._join(config)
        if self.subcommand is None:  # nothing is trained or resumed
            return
        if config.ckpt_path is None:
            if self.subcommand != "fit":
                raise PflError(f"pfl {self.subcommand}: a run is missing; allowed: its folder, or a checkpoint of it")
            return
        self.resume = self.resume or self._found(config.ckpt_path)
        config.ckpt_path = str(self.resume.checkpoint)
        settings = plain(self._parser(self.subcommand), self.written(config))
        done = self.resume.content["global_step"]
        if self.subcommand == "fit" and (rounds := config.trainer.max_steps) <= done:
            raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: more than the {done} rounds done")
        folder = processes.from_first(self.resume.folder)
        if self.subcommand == "fit" and folder and not config.trainer.fast_dev_run:
            self.folder = self._opened(lambda: RunFolder(folder))
            for table in (METRICS, CLIENTS):
                RoundCsv(self.folder.path / table).read(done)
        for line in refuse_changes(self.resume.content.get("config", {}), settings):
            if self.speaks:
                complain(line, "note")
        if self.subcommand == "fit":
            refuse_stopped(self.resume.content, settings)

    def _join(self, config: Namespace) -> None:
        """Have all processes of the run start, and agree on what they run."""
        if self.crew is not None:
            self.crew.join(config.trainer)
        elif not is_alone(config.trainer):
            key = "devices" if config.trainer.num_nodes == 1 else "num_nodes"
            what = f"trainer.{key}: {config.trainer[key]} is not possible in a program"
            raise PflError(f"{what}; allowed: 1, or pfl {self.subcommand or 'fit'} on the command line")
        if processes.count() > 1:
            settings = flat(plain(self._parser(self.subcommand), self.written(config)))
            versions = {"pfl_lightning": pfl_lightning.__version__, "torch": torch.__version__}
            agree({**versions, **{key: value for key, value in settings if not key.endswith(HERE)}})

    def _found(self, ckpt_path: str) -> Resume:
        """What the first process has found for ``--ckpt_path``."""
        trains, is_first = self.subcommand == "fit", processes.rank() == 0
        found = find_resume(ckpt_path, self.runs_folder, trains) if is_first else None
        path = processes.from_first(found and str(found.checkpoint))
        return found or find_resume(str(path), Path(), trains)

    def _opened(self, make: Callable[[], RunFolder]) -> RunFolder:
        """The run's folder, which the first process makes or finds, and locks."""
        folder = self.open.enter_context(make()) if processes.rank() == 0 else None
        path = processes.from_first(folder and folder.path)
        return folder or RunFolder(cast(Path, path))

    def _prepare_data(self) -> None:
        """Load and split the data, and refuse others than a checkpoint's or another machine's."""
        shows = self.speaks and processes.rank() == 0 and self.given.trainer.enable_progress_bar is not False
        with loading(type(self.datamodule).__name__) if shows else nullcontext():
            self.datamodule.setup(self.subcommand)
            self.check_data()
        if processes.count() > 1:
            agree({f"fingerprint of data.{self.datamodule.files_option}": self.datamodule.fingerprint()})

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
        self._prepare_data()
        self.model.build_for(self.datamodule, resumes=self.resume is not None)
        if self.model.taken and self.speaks:
            complain(self.model.taken, "note")
        self.config[self.subcommand].trainer.logger = self.logger
        given = self.config_init[self.subcommand].trainer
        callbacks = [given.callbacks] if isinstance(given.callbacks, pl.Callback) else list(given.callbacks or [])
        if self.subcommand == "fit":
            self._check_monitors(callbacks)
            callbacks = [CheckMonitors(), *callbacks]
        if self.subcommand == "fit" and not given.fast_dev_run:
            self.folder = self.folder or self._opened(lambda: new_folder(self.runs_folder))
            rounds = lasting_rounds(self.resume.content) if self.resume else None
            if processes.rank() == 0:
                self.open.enter_context(libraries_within(self.folder.path))
            kwargs["logger"] = loggers_of(self.logger, self.folder.path, rounds)
            kwargs["default_root_dir"] = self.folder.path
            callbacks += [self.folder, *(table for table in kwargs["logger"] if isinstance(table, MetricsTable))]
        if self.subcommand != "fit" and self.resume:
            callbacks += [EvaluationTable(self.resume.run), OrderlyEnd()]
        has_bar = given.enable_progress_bar is False or any(isinstance(each, ProgressBar) for each in callbacks)
        callbacks += [*self.added, *(kind() for kind in BESIDE)]
        callbacks += [RunSummary(self.verbose)] if self.speaks else []
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
