import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from time import time

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb

from pfl_lightning import methods
from pfl_lightning.callbacks.labels import method_name
from pfl_lightning.methods import Method
from pfl_lightning.report.run_files import settings_of
from pfl_lightning.score_kind import SPLITS
from pfl_lightning.settings.values import Settings, class_name, shown_class

KEPT_PREFIXES = tuple(f"{name}/" for name in (*SPLITS, "cross_site", "time"))  # of tags that stay as they are
PERCENTILE = re.compile(rf"({'|'.join(SPLITS)})/(.+/(?:(?:weighted_)?p[\d.]+|superquantile_[\d.]+))")
FIRST_COLUMNS = ("data", "method", "model.local.lr", "model.network", "seed")  # of the table when it opens
EVALUATED = "time/evaluated"  # the round that the newest results are of: a signal stops runs between evaluations
Scalar = bool | int | float | str


class Board(TensorBoardLogger):
    """Shows a run in TensorBoard so that its page opens with the test scores.

    TensorBoard groups tags by what is before the first slash, opens the first two groups, and sorts them by name.
    So percentiles have groups of their own, and what is no score comes below ``train``; see ``tag_of``. All other tags
    are the names in ``metrics.csv``.
    """

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Show scalars, but not the epoch: all rounds are one; and for the table, the round of each evaluation."""
        scalars = {tag_of(name): value for name, value in metrics.items() if name != "epoch"}
        if step is not None and any(name.startswith("test/") for name in scalars):
            scalars[EVALUATED] = step
        super().log_metrics(scalars, step)

    def show_config(self, text: str, step: int) -> None:
        """Show the text of ``config.yaml`` in the tab *Text*."""
        self.experiment.add_text("config.yaml", f"```yaml\n{text}```", step)

    def show_row(self, settings: Settings, results: Iterable[str]) -> None:
        """Begin this run's row in the table of the tab *HParams*; TensorBoard fills in the newest results itself.

        Args:
            settings: All settings of the run, as plain values.
            results: Tags of the results, in their order.
        """
        row = hyperparameters(settings)
        table_columns = [HParam(column_of(key), display_name=key) for key in columns(row)]
        writer = self.experiment.file_writer
        writer.add_summary(hparams_config_pb(table_columns, [Metric(tag) for tag in results]))
        # with an id of its own: runs with the same settings would share a row
        writer.add_summary(hparams_pb({column_of(key): value for key, value in row.items()}, trial_id=self.log_dir))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Say in the table of the tab *HParams* whether the run has ended or failed, as one that has diverged does."""
        if self._experiment is not None:
            outcome = api_pb2.STATUS_FAILURE if status == "failed" else api_pb2.STATUS_SUCCESS
            content = HParamsPluginData(session_end_info=SessionEndInfo(status=outcome, end_time_secs=time()))
            value = Summary.Value(
                tag=metadata.SESSION_END_INFO_TAG,
                metadata=metadata.create_summary_metadata(content),
                tensor=metadata.NULL_TENSOR,
            )
            self.experiment.file_writer.add_summary(Summary(value=[value]))
        super().finalize(status)


@contextmanager
def silence_writer_threads() -> Iterator[None]:
    """Let no thread print what TensorBoard cannot write: the run raises it as well."""
    previous_hook = threading.excepthook

    def hook(error: threading.ExceptHookArgs) -> None:
        if not type(error.thread).__module__.startswith("tensorboard."):
            previous_hook(error)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous_hook


def tensorboards(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    """The loggers of this run that write for TensorBoard; none in the processes that do not log."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero]


def tag_of(name: str) -> str:
    """The tag under which TensorBoard shows a logged value.

    Example:
        >>> tag_of("test/finetuned/accuracy/weighted_p90")
        'test_percentiles/finetuned/accuracy/weighted_p90'
        >>> tag_of("test/finetuned/accuracy/worst")
        'test/finetuned/accuracy/worst'
        >>> tag_of("bits/total")
        'train/bits/total'
    """
    if percentile := PERCENTILE.fullmatch(name):
        return f"{percentile[1]}_percentiles/{percentile[2]}"
    return name if name.startswith(KEPT_PREFIXES) else f"train/{name}"


def hyperparameters(settings: Settings) -> dict[str, Scalar]:
    """Method, data, seed and the other settings that make a run's curve, where they are single values."""
    row: dict[str, Scalar] = {
        "method": method_name(settings),
        "data": class_name(settings["data"]["class_path"]),
        "seed": settings["seed_everything"],
    }
    for key, value in settings_of(settings):
        makes_curve = "." in key and key != "data.seed" and not key.startswith("trainer.")
        if isinstance(value, Scalar) and makes_curve:
            row[key] = shown_class(value) if isinstance(value, str) else value
    return row


def columns(row: Iterable[str]) -> list[str]:
    """The settings that the table can show: those of a run, then the options that other methods have.

    TensorBoard reads them from one of the runs that it shows, whichever is the first.
    """
    classes = [value for value in vars(methods).values() if isinstance(value, type) and issubclass(value, Method)]
    options = [option for method in classes for option in signature(method).parameters.values()]
    names = [f"model.{option.name}" for option in options if option.kind != option.VAR_KEYWORD]
    return list(dict.fromkeys([*row, *names]))


def column_of(key: str) -> str:
    """TensorBoard's own name for a setting. It sorts by it, and shows the first five; a space sorts first."""
    return f" {key}" if key in FIRST_COLUMNS else key
