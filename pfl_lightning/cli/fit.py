"""``pfl fit``, ``pfl validate`` and ``pfl test``: words become an ``Experiment``, which runs."""

import json
import sys
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import pfl_lightning
from pfl_lightning import processes
from pfl_lightning.cli.aliases import true_options
from pfl_lightning.cli.help_texts import usage
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.runs.experiment import Experiment, add_settings
from pfl_lightning.runs.resume import Resume, find_resume, plain, runs_folder, settings_along
from pfl_lightning.runs.session import Command
from pfl_lightning.runs.trainer_options import check_settings
from pfl_lightning.settings.shipped_files import check_seed


class RunParser(PflParser, LightningArgumentParser):
    """The parser of the settings of a run."""


class SettingsCLI(LightningCLI):
    """Reads the settings of a run from files and options, and builds nothing.

    Args:
        words: The files and options.
        usage: How the command is used, in a line.
    """

    def __init__(self, words: list[str], **usage: str) -> None:
        super().__init__(
            Method,
            FederatedDataModule,
            parser_class=RunParser,
            parser_kwargs={"version": pfl_lightning.__version__, **usage},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_callback=None,
            args=words,
            run=False,  # with commands of its own, it parses all settings twice
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the settings of a run, its seed among them."""
        add_settings(parser)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what is no setting of a run."""
        parser.add_argument("-v", "--verbose", action="store_true", help="Say at the end how each layer was trained.")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse arguments, of which one would be lost: the data set's seed is that of ``seed_everything``."""
        words = ["--help" if word == "--help.all" else word for word in true_options(args, parser.error)]
        check_seed(words, (), 0)
        self.config = parser.parse_args(words)
        self.verbose = self.config.pop("verbose")
        check_seed((), self.config.get("config") or (), self.config.seed_everything)

    def before_instantiate_classes(self) -> None:
        """Check the settings."""
        self.settings = plain(self.parser, self.config)
        check_settings(self.settings)

    def instantiate_classes(self) -> None:
        """Build nothing."""


class RunCLI(SettingsCLI):
    """Method x data x trainer from YAML files and options: trains, or evaluates a run again.

    Args:
        args: The command and its words; the arguments of the process by default.
    """

    resume: Resume | None = None

    def __init__(self, args: list[str] | None = None) -> None:
        command, *words = map(str, sys.argv[1:] if args is None else args)
        self.command, self.alone = cast(Command, command), args is not None
        super().__init__(words, usage=usage(command))
        self.session.run()

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the checkpoint, which is no setting of a run either."""
        super().add_core_arguments_to_parser(parser)
        said = "The run to continue or evaluate: last, or its folder or a checkpoint."
        parser.add_argument("--ckpt_path", type=str | None, default=None, help=said)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse arguments, of which the first may be a run."""
        super().parse_arguments(parser, self._with_run(args))

    def _with_run(self, words: list[str]) -> list[str]:
        """The words of ``pfl test RUN`` with the run's settings in its place, before the options that change them."""
        run, *options = words or ["-"]
        if self.command == "fit" or run.startswith("-"):
            return words
        if any(word.partition("=")[0] == "--ckpt_path" for word in options):
            raise PflError(f"ckpt_path: not possible beside '{run}'; allowed: one of them")
        self.resume = find_resume(run, Path())
        cast(PflParser, self.parser).source = run
        return [f"--config={json.dumps(settings_along(self.resume))}", *options]

    def before_instantiate_classes(self) -> None:
        """Check the settings and find the checkpoint before anything is built."""
        named = self.config.pop("ckpt_path")
        super().before_instantiate_classes()
        if self.resume is None and named is not None:
            self.resume = find_resume(named, runs_folder(self.settings))
        if self.resume is None and self.command != "fit":
            raise PflError(f"pfl {self.command}: a run is missing; allowed: its folder, or a checkpoint of it")
        self.config.trainer.logger = False  # it is made when the run has a folder

    def instantiate_classes(self) -> None:
        """Make an experiment of the objects, and a session of it."""
        made = self.parser.instantiate(self.config)
        self.session = Experiment.of(made, self.settings).session(
            self.command, self.resume, alone=self.alone, speaks=True, verbose=self.verbose
        )
        if self.session.trainer.world_size > 1:
            try:
                processes.check_port()
            except PflError as error:
                self.parser.error(str(error), error)


def settings_of(words: list[str]) -> dict[str, Any]:
    """All settings of the options of ``pfl fit``, as plain values.

    Raises:
        SystemExit: With code 2 if they are wrong.
    """
    return SettingsCLI(words).settings
