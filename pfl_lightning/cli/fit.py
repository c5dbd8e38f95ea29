"""``pfl fit``, ``pfl validate`` and ``pfl test``: words become the parts of a run, which a session runs."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import pfl_lightning
from pfl_lightning import processes
from pfl_lightning.callbacks import RunSummary
from pfl_lightning.cli.main import help_text
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.runs.resume import Resume, find_resume, runs_folder, settings_along
from pfl_lightning.runs.run_settings import add_run_settings, make_parts, parse_words, plain_settings
from pfl_lightning.runs.run_setup import Command
from pfl_lightning.runs.session import Session
from pfl_lightning.runs.trainer_options import refuse_several_processes
from pfl_lightning.settings.parser import SettingsParser


class RunParser(SettingsParser, LightningArgumentParser):
    """The parser of the settings of a run, for Lightning's command line."""


class RunCLI(LightningCLI):
    """Makes a session of YAML files and options, which trains, or evaluates a run again.

    Args:
        command: ``fit``, ``validate`` or ``test``.
        words: The words after it.
    """

    def __init__(self, command: Command, words: list[str]) -> None:
        self.command = command
        self.resume: Resume | None = None
        self.is_in_program = sys.argv[1:] != [command, *words]  # which other processes would not run
        usage = help_text(command).partition("\n")[0].removeprefix("usage: ")
        super().__init__(
            Method,
            FederatedDataModule,
            parser_class=RunParser,
            parser_kwargs={"version": pfl_lightning.__version__, "usage": usage},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_callback=None,
            args=words,
            run=False,  # with commands of its own, it parses all settings twice
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the settings of a run, its seed among them."""
        add_run_settings(parser)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what is no setting of a run."""
        parser.add_argument("-v", "--verbose", action="store_true", help="Say at the end how each layer was trained.")
        help_line = "The run to continue or evaluate: last, or its folder or a checkpoint."
        parser.add_argument("--ckpt_path", type=str | None, default=None, help=help_line)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse arguments, of which the first may be a run."""
        self.config = parse_words(parser, self._with_run(args))

    def _with_run(self, words: list[str]) -> list[str]:
        """The words of ``pfl test RUN`` with the run's settings in its place, before the options that change them."""
        run, *options = words or ["-"]
        if self.command == "fit" or run.startswith("-"):
            return words
        if any(word.partition("=")[0] == "--ckpt_path" for word in options):
            raise PflError(f"ckpt_path: leave it out, since '{run}' is the run to evaluate")
        self.resume = find_resume(run, Path())
        return [f"--config={json.dumps(settings_along(self.resume))}", *options]

    def instantiate_classes(self) -> None:
        """Find the checkpoint, and make the parts of the run, and a session of them."""
        verbose = self.config.pop("verbose")
        checkpoint = self.config.pop("ckpt_path")
        settings = plain_settings(self.parser, self.config)
        if self.resume is None and checkpoint is not None:
            self.resume = find_resume(checkpoint, runs_folder(settings))
        if self.resume is None and self.command != "fit":
            raise PflError(f"pfl {self.command}: a run is missing; allowed: its folder, or a checkpoint of it")
        if self.is_in_program:
            refuse_several_processes(settings, self.command)
        parts = make_parts(self.parser, self.config, settings)
        self.session = Session(self.command, parts, self.resume, RunSummary(verbose))
        if self.session.trainer.world_size > 1:
            processes.check_port()


def run_command(command: Command, words: list[str]) -> None:
    """Run ``pfl fit``, ``pfl validate`` or ``pfl test``.

    Args:
        command: Which of them.
        words: The words after it.

    Raises:
        PflError: If the settings are wrong, or the run cannot go on.
    """
    processes.keep_freed_memory()
    RunCLI(command, words).session.run()


fit_command = partial(run_command, "fit")
validate_command = partial(run_command, "validate")
test_command = partial(run_command, "test")
