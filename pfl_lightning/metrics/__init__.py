from pfl_lightning.metrics.client_metric import ClientMetric, MetricFactory, build_metric, metric_name
from pfl_lightning.metrics.client_scores import ClientScore, ClientScores
from pfl_lightning.metrics.concordance import ConcordanceIndex
from pfl_lightning.metrics.density import ClientDensity, density
from pfl_lightning.metrics.functional import client_percentiles, fairness_summary, superquantile, weighted_quantile
from pfl_lightning.metrics.similarity import orthonormal, pair_correlation, pairs, principal_angle_distance
from pfl_lightning.metrics.tail import smooth_quantile, tail_weights

__all__ = [
    "ClientDensity",
    "ClientMetric",
    "ClientScore",
    "ClientScores",
    "ConcordanceIndex",
    "MetricFactory",
    "build_metric",
    "client_percentiles",
    "density",
    "fairness_summary",
    "metric_name",
    "orthonormal",
    "pair_correlation",
    "pairs",
    "principal_angle_distance",
    "smooth_quantile",
    "superquantile",
    "tail_weights",
    "weighted_quantile",
]
