from pfl_lightning.server.aggregation import Weighting, client_weights
from pfl_lightning.server.quantile import quantile_from_sums
from pfl_lightning.server.secure_sums import SecureSums
from pfl_lightning.server.sums import Sums, WeightedSum

__all__ = ["SecureSums", "Sums", "WeightedSum", "Weighting", "client_weights", "quantile_from_sums"]
