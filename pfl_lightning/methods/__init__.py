from pfl_lightning.federation.checkpoints import (
    DamagedError,
    read_checkpoint,
)
from pfl_lightning.federation.client_models import NeedsSamplesError
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.methods.apfl import APFL
from pfl_lightning.methods.apple import APPLE
from pfl_lightning.methods.cfl import CFL
from pfl_lightning.methods.delta_fl import DeltaFL
from pfl_lightning.methods.deprl import DePRL
from pfl_lightning.methods.dispfl import DisPFL
from pfl_lightning.methods.ditto import Ditto
from pfl_lightning.methods.dpsgd import DPSGD
from pfl_lightning.methods.families.client_loop import ClientLoop
from pfl_lightning.methods.fedala import FedALA
from pfl_lightning.methods.fedalt import FedALT
from pfl_lightning.methods.fedamp import FedAMP
from pfl_lightning.methods.fedas import FedAS
from pfl_lightning.methods.fedavg import FedAvg
from pfl_lightning.methods.fedbabu import FedBABU
from pfl_lightning.methods.fedbn import FedBN
from pfl_lightning.methods.fedcac import FedCAC
from pfl_lightning.methods.fedcp import FedCP
from pfl_lightning.methods.feddbe import FedDBE
from pfl_lightning.methods.feddistill import FedDistill
from pfl_lightning.methods.feddpa import FedDPA
from pfl_lightning.methods.feddyn import FedDyn
from pfl_lightning.methods.fedem import FedEM
from pfl_lightning.methods.fedex_lora import FedExLoRA
from pfl_lightning.methods.fedfomo import FedFomo
from pfl_lightning.methods.fedgen import FedGen
from pfl_lightning.methods.fedgh import FedGH
from pfl_lightning.methods.fedkd import FedKD
from pfl_lightning.methods.fedlc import FedLC
from pfl_lightning.methods.fedmac import FedMac
from pfl_lightning.methods.fedmrl import FedMRL
from pfl_lightning.methods.fednova import FedNova
from pfl_lightning.methods.fedntd import FedNTD
from pfl_lightning.methods.fedpac import FedPAC
from pfl_lightning.methods.fedper import FedPer
from pfl_lightning.methods.fedphp import FedPHP
from pfl_lightning.methods.fedproto import FedProto
from pfl_lightning.methods.fedprox import FedProx
from pfl_lightning.methods.fedrep import FedRep
from pfl_lightning.methods.fedrod import FedRoD
from pfl_lightning.methods.fedtgp import FedTGP
from pfl_lightning.methods.flexlora import FlexLoRA
from pfl_lightning.methods.floco import Floco
from pfl_lightning.methods.flora import FLoRA
from pfl_lightning.methods.fml import FML
from pfl_lightning.methods.gpfl import GPFL
from pfl_lightning.methods.heterofl import HeteroFL
from pfl_lightning.methods.hetlora import HetLoRA
from pfl_lightning.methods.heur_fedamp import HeurFedAMP
from pfl_lightning.methods.hf_maml import HFMAML
from pfl_lightning.methods.ifca import IFCA
from pfl_lightning.methods.knn_per import KNNPer
from pfl_lightning.methods.lg_fedavg import LGFedAvg
from pfl_lightning.methods.linear_fedrep import LinearFedRep
from pfl_lightning.methods.local import Local
from pfl_lightning.methods.method import Method, method_of
from pfl_lightning.methods.moon import MOON
from pfl_lightning.methods.per_fedavg import PerFedAvg
from pfl_lightning.methods.pfedfda import PFedFDA
from pfl_lightning.methods.pfedgraph import PFedGraph
from pfl_lightning.methods.pfedhn import PFedHN
from pfl_lightning.methods.pfedme import PFedMe
from pfl_lightning.methods.pfedsim import PFedSim
from pfl_lightning.methods.qffl import QFFL
from pfl_lightning.methods.rolora import RoLoRA
from pfl_lightning.methods.scaffold import SCAFFOLD

__all__ = [
    "APFL",
    "APPLE",
    "CFL",
    "DPSGD",
    "FML",
    "GPFL",
    "HFMAML",
    "IFCA",
    "MOON",
    "QFFL",
    "SCAFFOLD",
    "ClientLoop",
    "DamagedError",
    "DePRL",
    "DeltaFL",
    "DisPFL",
    "Ditto",
    "FLoRA",
    "FedALA",
    "FedALT",
    "FedAMP",
    "FedAS",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedCAC",
    "FedCP",
    "FedDBE",
    "FedDPA",
    "FedDistill",
    "FedDyn",
    "FedEM",
    "FedExLoRA",
    "FedFomo",
    "FedGH",
    "FedGen",
    "FedKD",
    "FedLC",
    "FedMRL",
    "FedMac",
    "FedNTD",
    "FedNova",
    "FedPAC",
    "FedPHP",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedTGP",
    "FlexLoRA",
    "Floco",
    "HetLoRA",
    "HeteroFL",
    "HeurFedAMP",
    "KNNPer",
    "LGFedAvg",
    "LinearFedRep",
    "Local",
    "Method",
    "NeedsSamplesError",
    "PFedFDA",
    "PFedGraph",
    "PFedHN",
    "PFedMe",
    "PFedSim",
    "PerFedAvg",
    "RoLoRA",
    "Sparsity",
    "method_of",
    "read_checkpoint",
]
