"""Tables and figures; knows neither methods nor training."""

from pfl_lightning.report.choice import Choice, can_choose, choice_of, choice_tables
from pfl_lightning.report.client_figures import clients_figure, samples_figure
from pfl_lightning.report.compare_curves import Curve, curves_of
from pfl_lightning.report.compare_figures import bits_figure, cohort_figure, rounds_figure, time_figure, training_figure
from pfl_lightning.report.compare_runs import RunRecord, check_same_data, read_run
from pfl_lightning.report.compare_tables import tables_of
from pfl_lightning.report.drawing import save_figure
from pfl_lightning.report.figures import (
    cosine_figure,
    density_figure,
    neighbours_figure,
    partition_card,
    partition_figure,
    partition_table,
    scatter_figure,
    topology_figure,
)
from pfl_lightning.report.frames import clients, results
from pfl_lightning.report.pictures import pictures_of, write_pictures
from pfl_lightning.report.tables import write_csv
from pfl_lightning.report.tail_figures import choice_figure, error_rounds_figure, tail_figure
from pfl_lightning.report.tails import common_seeds

__all__ = [
    "Choice",
    "Curve",
    "RunRecord",
    "bits_figure",
    "can_choose",
    "check_same_data",
    "choice_figure",
    "choice_of",
    "choice_tables",
    "clients",
    "clients_figure",
    "cohort_figure",
    "common_seeds",
    "cosine_figure",
    "curves_of",
    "density_figure",
    "error_rounds_figure",
    "neighbours_figure",
    "partition_card",
    "partition_figure",
    "partition_table",
    "pictures_of",
    "read_run",
    "results",
    "rounds_figure",
    "samples_figure",
    "save_figure",
    "scatter_figure",
    "tables_of",
    "tail_figure",
    "time_figure",
    "topology_figure",
    "training_figure",
    "write_csv",
    "write_pictures",
]
