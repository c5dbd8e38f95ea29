from pfl_lightning.methods.assembly import assemble
from pfl_lightning.methods.base import Method
from pfl_lightning.methods.fedavg import FedAvg
from pfl_lightning.methods.fedrep import FedRep
from pfl_lightning.methods.hf_maml import HFMAML
from pfl_lightning.methods.lg_fedavg import LGFedAvg
from pfl_lightning.methods.linear_fedrep import LinearFedRep
from pfl_lightning.methods.loading import load_method
from pfl_lightning.methods.local import Local

__all__ = ["HFMAML", "FedAvg", "FedRep", "LGFedAvg", "LinearFedRep", "Local", "Method", "assemble", "load_method"]
