from pfl_lightning.metrics.client_scores import ClientAccuracy, ClientLoss, ClientScore, ClientScores
from pfl_lightning.metrics.density import ClientDensity, density
from pfl_lightning.metrics.functional import client_percentiles, client_summary, superquantile, weighted_quantile
from pfl_lightning.metrics.similarity import pair_correlation, pairs
from pfl_lightning.metrics.tail import smooth_quantile, tail_weights

__all__ = [
    "ClientAccuracy",
    "ClientDensity",
    "ClientLoss",
    "ClientScore",
    "ClientScores",
    "client_percentiles",
    "client_summary",
    "density",
    "pair_correlation",
    "pairs",
    "smooth_quantile",
    "superquantile",
    "tail_weights",
    "weighted_quantile",
]
