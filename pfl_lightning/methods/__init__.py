from pfl_lightning.methods.base import Method
from pfl_lightning.methods.fedavg import FedAvg
from pfl_lightning.methods.fedrep import FedRep
from pfl_lightning.methods.loading import load_method
from pfl_lightning.methods.local import Local

__all__ = ["FedAvg", "FedRep", "Local", "Method", "load_method"]
