"""Tables and figures; knows neither methods nor training."""

from pfl_lightning.report.compare_curves import Curve, curves_of
from pfl_lightning.report.compare_figures import clients_figure, rounds_figure, time_figure
from pfl_lightning.report.compare_runs import Run, check_same_data, read_run
from pfl_lightning.report.compare_tables import (
    final_markdown,
    final_rows,
    time_markdown,
    time_rows,
    usual_targets,
)
from pfl_lightning.report.partition import partition_figure, partition_table
from pfl_lightning.report.tables import write_csv

__all__ = [
    "Curve",
    "Run",
    "check_same_data",
    "clients_figure",
    "curves_of",
    "final_markdown",
    "final_rows",
    "partition_figure",
    "partition_table",
    "read_run",
    "rounds_figure",
    "time_figure",
    "time_markdown",
    "time_rows",
    "usual_targets",
    "write_csv",
]
