"""``pfl fit``, ``pfl validate`` and ``pfl test``: words become an ``Experiment``, which runs."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import pfl_lightning
from pfl_lightning import processes
from pfl_lightning.checks import check_settings
from pfl_lightning.cli.aliases import true_options
from pfl_lightning.cli.help_texts import usage
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.config_files import check_seed
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.experiment import Experiment, add_settings
from pfl_lightning.methods import Method
from pfl_lightning.runs import Resume, find_resume, plain, runs_folder, settings_along
from pfl_lightning.session import Command

COMMANDS = ("fit", "validate", "test")


class RunParser(PflParser, LightningArgumentParser):
    """The parser of the settings of a run."""


class PflCLI(LightningCLI):
    """Method x data x trainer from YAML files and options.

    Args:
        args: Arguments; those of the process by default.
        run: Whether there is a subcommand.
    """

    resume: Resume | None = None
    verbose = False  # whether it says how layers were trained

    def __init__(self, args: list[str] | None = None, run: bool = True) -> None:
        self.words, self.alone = [str(word) for word in (sys.argv[1:] if args is None else args)], args is not None
        super().__init__(
            Method,
            FederatedDataModule,
            parser_class=RunParser,
            parser_kwargs={
                "version": pfl_lightning.__version__,
                **{name: {"usage": usage(name)} for name in self.subcommands()},
            },
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_callback=None,
            args=args,
            run=run,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning calls it on the object
        """The subcommand that is asked for: the parser of each takes a while."""
        known = LightningCLI.subcommands()
        asked = next((word for word in self.words if word in COMMANDS), None)
        return {name: known[name] | {"verbose", "weights_only"} for name in COMMANDS if asked in (name, None)}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the settings of a run, its seed among them."""
        add_settings(parser)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what is no setting of a run."""
        parser.add_argument("-v", "--verbose", action="store_true", help="Say at the end how each layer was trained.")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse arguments, of which one would be lost: the data set's seed is that of ``seed_everything``."""
        words = list(true_options(self.words, parser.error))
        words = ["--help" if word == "--help.all" else word for word in words]
        check_seed(words, (), 0)
        names_run = words[:1] in (["test"], ["validate"]) and not [*words[1:2], "-"][0].startswith("-")
        super().parse_arguments(parser, self._with_run(words) if names_run else words)
        self.verbose = self.given.pop("verbose")  # no setting of the run, and neither is the checkpoint
        self.named = self.given.pop("ckpt_path", None)
        check_seed((), self.given.get("config") or (), self.given.seed_everything)

    @property
    def given(self) -> Namespace:
        """The parsed settings, of the subcommand if there is one."""
        return cast(Namespace, self.config.get(self.config.get("subcommand") or "", self.config))

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the run, as plain values."""
        return plain(self._parser(self.config.get("subcommand")), self.given)

    def _with_run(self, words: list[str]) -> list[str]:
        """The words of ``pfl test RUN`` with the run's settings in its place, before the options that change them."""
        command, run, *options = words
        if any(word.partition("=")[0] == "--ckpt_path" for word in options):
            raise PflError(f"ckpt_path: not possible beside '{run}'; allowed: one of them")
        self.resume = find_resume(run, Path())
        cast(PflParser, self._parser(command)).source = run
        return [command, f"--config={json.dumps(settings_along(self.resume))}", *options]

    def before_instantiate_classes(self) -> None:
        """Check the settings and find the checkpoint before anything is built."""
        self.all_settings = self.settings
        check_settings(self.all_settings)
        if self.subcommand is None:
            return
        if self.resume is None and self.named is not None:
            self.resume = find_resume(self.named, runs_folder(self.all_settings))
        if self.resume is None and self.subcommand != "fit":
            raise PflError(f"pfl {self.subcommand}: a run is missing; allowed: its folder, or a checkpoint of it")
        self.given.trainer.logger = False  # it is made when the run has a folder

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Make an experiment of the objects; its run has the trainer."""
        experiment = Experiment.of(self.config_init[self.subcommand], self.all_settings)
        self.session = experiment.session(
            cast(Command, self.subcommand), self.resume, alone=self.alone, speaks=True, verbose=self.verbose
        )
        if self.session.trainer.world_size > 1:
            try:
                processes.check_port()
            except PflError as error:
                self.parser.error(str(error), error)
        return self.session.trainer

    def fit(self, **kwargs: Any) -> None:
        """Run what was asked for."""
        self.session.run()

    validate = test = fit


class SettingsCLI(PflCLI):
    """Reads the settings of a run, and builds nothing."""

    def instantiate_classes(self) -> None:
        """Build nothing."""


def settings_of(words: list[str]) -> dict[str, Any]:
    """All settings of the options of ``pfl fit``, as plain values.

    Raises:
        SystemExit: With code 2 if they are wrong.
    """
    return SettingsCLI(words, run=False).all_settings
