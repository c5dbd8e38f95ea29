"""Tables and figures; knows neither methods nor training."""

from pfl_lightning.report.partition import partition_figure, partition_table

__all__ = ["partition_figure", "partition_table"]
