from pfl_lightning.metrics.client_accuracy import ClientAccuracy, ClientScores
from pfl_lightning.metrics.functional import client_percentiles, client_summary, superquantile, weighted_quantile

__all__ = [
    "ClientAccuracy",
    "ClientScores",
    "client_percentiles",
    "client_summary",
    "superquantile",
    "weighted_quantile",
]
