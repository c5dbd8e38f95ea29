"""``pfl fit``, ``pfl validate`` and ``pfl test``."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import Logger, TensorBoardLogger

import pfl_lightning
from pfl_lightning.callbacks import (
    ClientHistograms,
    ClientScatter,
    EvaluateStartAndEnd,
    MetricsTable,
    PartitionFigure,
    PercentileErrors,
    RoundCheckpoint,
    RunSummary,
    TopologyFigure,
)
from pfl_lightning.callbacks.progress import RoundProgressBar
from pfl_lightning.cli.console import complain
from pfl_lightning.cli.parser import CHOICES, PflParser, plain
from pfl_lightning.cli.runs import Resume, find_resume, refuse_changes, start_folder
from pfl_lightning.data import FederatedDataModule, federated
from pfl_lightning.data.rounds import check_rounds
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.settings import named_callbacks, run_name

DESCRIPTION = """Personalized federated learning on PyTorch Lightning: a method, a data set and who takes part.
To start: pfl fit --model FedRep --data Digits. To list the options of a method: pfl fit --model.help FedRep.
To inspect or download data: pfl data. To run many experiments: pfl sweep. To compare their results: pfl compare."""


# trainer options whose other values make no sense with communication rounds
POSSIBLE: dict[str, tuple[Any, ...]] = {
    "devices": (1, "1"),
    "num_nodes": (1,),
    "max_epochs": (-1,),
    "limit_train_batches": (None,),
    "limit_val_batches": (None,),
    "limit_test_batches": (None,),
    "overfit_batches": (0.0,),
    "accumulate_grad_batches": (1,),
    "gradient_clip_val": (None,),
    "enable_checkpointing": (None, True),
    "precision": (None, "32-true", "64-true", "bf16-true", "bf16-mixed"),
}


class SavedConfig(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder and the same settings into every checkpoint."""

    fingerprint = ""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any) -> None:
        config = config.clone()
        config.pop("ckpt_path", None)  # running the saved file starts a new run
        super().__init__(parser, config, **kwargs)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write the file when training starts."""
        if stage == "fit" and trainer.logger is not None:
            super().setup(trainer, pl_module, stage)

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

    def __init__(self, args: list[str] | None = None, run: bool = True) -> None:
        super().__init__(
            Method,
            FederatedDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=PflParser,
            parser_kwargs={"version": pfl_lightning.__version__, "description": DESCRIPTION},
            auto_configure_optimizers=False,
            seed_everything_default=1,
            save_config_callback=SavedConfig,
            save_config_kwargs={"overwrite": True},
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

    def _parse_ckpt_path(self) -> None:
        """Lightning would let the checkpoint's settings beat the command line, silently."""

    def before_instantiate_classes(self) -> None:
        """Find the checkpoint before anything is built, and refuse what a resumed run cannot change."""
        if self.subcommand is None:  # nothing is trained or resumed
            return
        config = self.config[self.subcommand]
        check_trainer(config.trainer)
        check_model(config.model)
        if config.ckpt_path is None:
            if self.subcommand != "fit":
                raise PflError(f"ckpt_path: pfl {self.subcommand} needs a checkpoint; allowed: a file, or last")
            return
        self.resume = find_resume(config.ckpt_path, self.runs_folder, training=self.subcommand == "fit")
        config.ckpt_path = str(self.resume.checkpoint)
        settings = plain(self._parser(self.subcommand), config)
        done = self.resume.content["global_step"]
        if self.subcommand == "fit" and (rounds := config.trainer.max_steps) <= done:
            raise PflError(f"trainer.max_steps: {rounds} is not possible; allowed: more than the {done} rounds done")
        for line in refuse_changes(self.resume.content.get("config", {}), settings):
            complain(line, "note")

    @property
    def runs_folder(self) -> Path:
        """Where the runs of this method and data set are."""
        config = self.config[self.subcommand]
        return Path(config.trainer.default_root_dir) / run_name(config)

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Build data and network first, so that a run that cannot start leaves no folder; add the usual callbacks."""
        self.datamodule.prepare_data()
        self.datamodule.setup(self.subcommand)
        self._check_data()
        self.model.build_for(self.datamodule)
        given = self.config_init[self.subcommand].trainer
        if self.subcommand != "fit":
            kwargs["logger"] = False
        else:
            self.config_init[self.subcommand].checkpoint.check_monitor(self.model, self.datamodule)
        if self.subcommand == "fit" and not given.fast_dev_run:
            folder = (self.resume and self.resume.folder) or start_folder(self.runs_folder)
            kwargs["default_root_dir"] = folder
            if given.logger in (None, True):
                kwargs["logger"] = self.loggers(folder)
        pictures = [PartitionFigure(), TopologyFigure(), ClientHistograms(), ClientScatter()]
        own = [given.callbacks] if isinstance(given.callbacks, pl.Callback) else given.callbacks or []
        kwargs["callbacks"] = [*own, EvaluateStartAndEnd(), *pictures, RunSummary()]
        if given.enable_progress_bar is not False:
            kwargs["callbacks"].append(RoundProgressBar())
        return super().instantiate_trainer(**kwargs)

    def _check_data(self) -> None:
        """Refuse to resume on other data with the same settings."""
        before = self.resume and self.resume.content.get("fingerprint")
        if before and not self.datamodule.new_clients and before != self.datamodule.fingerprint():
            raise PflError(
                f"data.root: '{self.datamodule.root}' holds other data than the checkpoint was trained on; "
                "allowed: the same files"
            )

    def loggers(self, folder: Path) -> list[Logger]:
        """TensorBoard and ``metrics.csv``, in a new run folder or in that of the run that is resumed."""
        purge = self.resume.content["global_step"] + 1 if self.resume else None
        board = TensorBoardLogger(
            folder.parent.parent, folder.parent.name, folder.name, default_hp_metric=False, purge_step=purge
        )
        return [board, MetricsTable(folder)]


def check_trainer(trainer: Namespace) -> None:
    """Refuse trainer options that make no sense with communication rounds.

    Raises:
        PflError: If one of them is set.
    """
    check_rounds(trainer.max_steps)
    for option, possible in POSSIBLE.items():
        if trainer[option] not in possible:
            allowed = ", ".join(dict.fromkeys("null" if value is None else str(value) for value in possible))
            raise PflError(f"trainer.{option}: {trainer[option]} is not possible; allowed: {allowed}")
    names = [name for name, _ in named_callbacks(trainer.callbacks)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PflError(f"trainer.callbacks: {twice.pop()} is listed twice; allowed: once (null clears the list)")


def check_model(model: Namespace) -> None:
    """Refuse a single value for an option that has options of its own, and no class where there must be one.

    The parser lets these pass.

    Raises:
        PflError: If there is one.
    """
    given = model.get("init_args", {})
    sparsity = given.get("sparsity", Namespace())
    if not isinstance(sparsity, Namespace):
        value = "null" if sparsity is None else sparsity
        raise PflError(f"model.sparsity: {value} is not possible; allowed: the options below this key")
    if given.get("topology", Namespace()) is None:
        raise PflError(f"model.topology: null is not possible; allowed: {', '.join(sorted(CHOICES['topology']))}")


def one_seed(seed: bool | int) -> int:
    """The seed of the data set: that of ``seed_everything``, which Lightning also lets be true or false.

    Raises:
        ValueError: If it is not a number.
    """
    if isinstance(seed, bool):
        raise ValueError(f"seed_everything: {str(seed).lower()} is not possible; allowed: a whole number")
    return seed
