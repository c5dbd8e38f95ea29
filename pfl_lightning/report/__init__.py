"""Tables and figures; knows neither methods nor training."""

from pfl_lightning.report.choice import Choice, can_choose, choice_markdown, choice_of, choice_rows, group_rows
from pfl_lightning.report.client_figures import clients_figure, samples_figure
from pfl_lightning.report.compare_costs import COSTS
from pfl_lightning.report.compare_curves import Curve, curves_of
from pfl_lightning.report.compare_figures import (
    bits_figure,
    cohort_figure,
    cohorts_differ,
    rounds_figure,
    time_figure,
    training_figure,
)
from pfl_lightning.report.compare_runs import Run, check_same_data, read_run
from pfl_lightning.report.compare_tables import (
    convergence_markdown,
    convergence_rows,
    cost_markdown,
    cost_rows,
    final_markdown,
    final_rows,
    time_markdown,
    time_rows,
    usual_targets,
)
from pfl_lightning.report.convergence import converged_round
from pfl_lightning.report.cosines import cosine_figure
from pfl_lightning.report.density import density_figure
from pfl_lightning.report.drawing import save_figure
from pfl_lightning.report.frames import clients, results
from pfl_lightning.report.partition import partition_figure, partition_table
from pfl_lightning.report.pictures import Picture, pictures_of, write_pictures
from pfl_lightning.report.scatter import scatter_axes, scatter_figure
from pfl_lightning.report.tables import write_csv
from pfl_lightning.report.tail_figures import choice_figure, error_rounds_figure, tail_figure
from pfl_lightning.report.tail_tables import error_markdown, error_rows
from pfl_lightning.report.tails import common_seeds, reference_of
from pfl_lightning.report.topology import neighbours_figure, topology_figure

__all__ = [
    "COSTS",
    "Choice",
    "Curve",
    "Picture",
    "Run",
    "bits_figure",
    "can_choose",
    "check_same_data",
    "choice_figure",
    "choice_markdown",
    "choice_of",
    "choice_rows",
    "clients",
    "clients_figure",
    "cohort_figure",
    "cohorts_differ",
    "common_seeds",
    "converged_round",
    "convergence_markdown",
    "convergence_rows",
    "cosine_figure",
    "cost_markdown",
    "cost_rows",
    "curves_of",
    "density_figure",
    "error_markdown",
    "error_rounds_figure",
    "error_rows",
    "final_markdown",
    "final_rows",
    "group_rows",
    "neighbours_figure",
    "partition_figure",
    "partition_table",
    "pictures_of",
    "read_run",
    "reference_of",
    "results",
    "rounds_figure",
    "samples_figure",
    "save_figure",
    "scatter_axes",
    "scatter_figure",
    "tail_figure",
    "time_figure",
    "time_markdown",
    "time_rows",
    "topology_figure",
    "training_figure",
    "usual_targets",
    "write_csv",
    "write_pictures",
]
