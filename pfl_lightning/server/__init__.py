from pfl_lightning.server.aggregation import Weighting, client_weights

__all__ = ["Weighting", "client_weights"]
