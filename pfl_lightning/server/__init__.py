from pfl_lightning.server.aggregation import Weighting, client_weights
from pfl_lightning.server.attention import cosine_attention, distance_attention
from pfl_lightning.server.quantile import adding, quantile_from_sums
from pfl_lightning.server.secure_sums import SecureSums
from pfl_lightning.server.sums import Sums, WeightedSum

__all__ = [
    "SecureSums",
    "Sums",
    "WeightedSum",
    "Weighting",
    "adding",
    "client_weights",
    "cosine_attention",
    "distance_attention",
    "quantile_from_sums",
]
