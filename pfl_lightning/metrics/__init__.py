from pfl_lightning.metrics.client_metric import ClientMetric, MetricFactory, made_for, name_of
from pfl_lightning.metrics.client_scores import ClientScore, ClientScores
from pfl_lightning.metrics.density import ClientDensity, density
from pfl_lightning.metrics.functional import client_percentiles, superquantile, weighted_quantile
from pfl_lightning.metrics.similarity import pair_correlation, pairs
from pfl_lightning.metrics.tail import smooth_quantile, tail_weights

__all__ = [
    "ClientDensity",
    "ClientMetric",
    "ClientScore",
    "ClientScores",
    "MetricFactory",
    "client_percentiles",
    "density",
    "made_for",
    "name_of",
    "pair_correlation",
    "pairs",
    "smooth_quantile",
    "superquantile",
    "tail_weights",
    "weighted_quantile",
]
