from pfl_lightning.metrics.client_scores import ClientAccuracy, ClientLoss, ClientScore, ClientScores
from pfl_lightning.metrics.functional import client_percentiles, client_summary, superquantile, weighted_quantile

__all__ = [
    "ClientAccuracy",
    "ClientLoss",
    "ClientScore",
    "ClientScores",
    "client_percentiles",
    "client_summary",
    "superquantile",
    "weighted_quantile",
]
