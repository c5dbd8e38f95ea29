from pfl_lightning.callbacks.aggregation_error import AggregationError
from pfl_lightning.callbacks.client_metrics import ClientMetrics
from pfl_lightning.callbacks.client_tables import EvaluationTable, PercentileErrors
from pfl_lightning.callbacks.cosine_maps import CosineMaps
from pfl_lightning.callbacks.cross_site import CrossSite
from pfl_lightning.callbacks.doubling import OracleDoubling, StageDoubling
from pfl_lightning.callbacks.evaluation import EvaluateStartAndEnd
from pfl_lightning.callbacks.figures import RunFigures
from pfl_lightning.callbacks.gradient_doubling import GradientDoubling
from pfl_lightning.callbacks.gradient_norm import GradientNorm
from pfl_lightning.callbacks.metrics_table import MetricsTable
from pfl_lightning.callbacks.progress_bar import RoundProgressBar
from pfl_lightning.callbacks.round_checkpoint import RoundCheckpoint
from pfl_lightning.callbacks.sparsity_tracker import SparsityTracker
from pfl_lightning.callbacks.summary import RunSummary

__all__ = [
    "AggregationError",
    "ClientMetrics",
    "CosineMaps",
    "CrossSite",
    "EvaluateStartAndEnd",
    "EvaluationTable",
    "GradientDoubling",
    "GradientNorm",
    "MetricsTable",
    "OracleDoubling",
    "PercentileErrors",
    "RoundCheckpoint",
    "RoundProgressBar",
    "RunFigures",
    "RunSummary",
    "SparsityTracker",
    "StageDoubling",
]
