from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from pfl_lightning.callbacks.round_csv import RoundCsv


class MetricsTable(Logger):
    """Writes every logged scalar to ``metrics.csv``, one line per round.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.table = RoundCsv(
            folder / "metrics.csv", first=("time/compute", "time/total", "train/loss", "system/cohort")
        )
        self.row: dict[str, float] = {}

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.parent.name

    @property
    def version(self) -> str:
        """Version of the run."""
        return self.folder.name

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the scalars of a round; those of an evaluation are added to the line of the round before it."""
        assert step is not None
        if step != self.table.round:
            self.row = {}
        self.row |= {name: value for name, value in metrics.items() if name != "epoch"}
        self.table.write(step, [self.row])

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: hyperparameters are in ``config.yaml``."""
