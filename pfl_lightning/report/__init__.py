"""Tables and figures; knows neither methods nor training."""

from pfl_lightning.report.choice import Choice, can_choose, choice_of, choice_tables
from pfl_lightning.report.client_figures import scatter_figure
from pfl_lightning.report.compare_curves import Curve, curves_of
from pfl_lightning.report.compare_figures import time_figure
from pfl_lightning.report.compare_tables import tables_of
from pfl_lightning.report.drawing import save_figure
from pfl_lightning.report.frames import clients, final_score, results
from pfl_lightning.report.heat_maps import by_largest_class, cosine_figure, cross_site_figure, density_figure
from pfl_lightning.report.measures import common_seeds
from pfl_lightning.report.partition import partition_card, partition_figure, partition_table
from pfl_lightning.report.pictures import Format, clear, pictures_of, write_pictures
from pfl_lightning.report.run_files import RunRecord, check_same_data, differing, read_run
from pfl_lightning.report.suite_report import write_suite_report
from pfl_lightning.report.suite_results import (
    Entry,
    SuiteResults,
    check_same_suite,
    read_results,
    suite_results,
    suite_settings,
)
from pfl_lightning.report.tables import write_csv
from pfl_lightning.report.topology import neighbours_figure, topology_figure

__all__ = [
    "Choice",
    "Curve",
    "Entry",
    "Format",
    "RunRecord",
    "SuiteResults",
    "by_largest_class",
    "can_choose",
    "check_same_data",
    "check_same_suite",
    "choice_of",
    "choice_tables",
    "clear",
    "clients",
    "common_seeds",
    "cosine_figure",
    "cross_site_figure",
    "curves_of",
    "density_figure",
    "differing",
    "final_score",
    "neighbours_figure",
    "partition_card",
    "partition_figure",
    "partition_table",
    "pictures_of",
    "read_results",
    "read_run",
    "results",
    "save_figure",
    "scatter_figure",
    "suite_results",
    "suite_settings",
    "tables_of",
    "time_figure",
    "topology_figure",
    "write_csv",
    "write_pictures",
    "write_suite_report",
]
