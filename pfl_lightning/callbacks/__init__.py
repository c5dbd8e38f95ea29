from pfl_lightning.callbacks.checkpointing import RoundCheckpoint
from pfl_lightning.callbacks.client_histograms import ClientHistograms
from pfl_lightning.callbacks.client_metrics import ClientMetrics
from pfl_lightning.callbacks.client_scatter import ClientScatter
from pfl_lightning.callbacks.cosine_maps import CosineMaps
from pfl_lightning.callbacks.evaluation import EvaluateStartAndEnd
from pfl_lightning.callbacks.evaluation_table import EvaluationTable
from pfl_lightning.callbacks.gradient_doubling import GradientDoubling
from pfl_lightning.callbacks.metrics_table import MetricsTable
from pfl_lightning.callbacks.oracle_doubling import OracleDoubling
from pfl_lightning.callbacks.partition_figure import PartitionFigure
from pfl_lightning.callbacks.percentile_errors import PercentileErrors
from pfl_lightning.callbacks.progress import RoundProgressBar
from pfl_lightning.callbacks.score_charts import ScoreCharts
from pfl_lightning.callbacks.sparsity_tracker import SparsityTracker
from pfl_lightning.callbacks.stage_doubling import StageDoubling
from pfl_lightning.callbacks.summary import RunSummary
from pfl_lightning.callbacks.topology_figure import TopologyFigure

__all__ = [
    "ClientHistograms",
    "ClientMetrics",
    "ClientScatter",
    "CosineMaps",
    "EvaluateStartAndEnd",
    "EvaluationTable",
    "GradientDoubling",
    "MetricsTable",
    "OracleDoubling",
    "PartitionFigure",
    "PercentileErrors",
    "RoundCheckpoint",
    "RoundProgressBar",
    "RunSummary",
    "ScoreCharts",
    "SparsityTracker",
    "StageDoubling",
    "TopologyFigure",
]
