from pfl_lightning.server.aggregation import Weighting, client_weights
from pfl_lightning.server.attention import cosine_attention, cosines, distance_attention
from pfl_lightning.server.links import Links, Mixing
from pfl_lightning.server.messages import nbytes, pack, restored, stored, unpack
from pfl_lightning.server.private_sums import PrivateSums
from pfl_lightning.server.quantile import adding, quantile_from_sums
from pfl_lightning.server.secure_sums import SecureSums
from pfl_lightning.server.sums import Sums, Upload, WeightedSum
from pfl_lightning.server.topology import Complete, ErdosRenyi, Exponential, GraphFile, Ring, Star, Topology, Torus

__all__ = [
    "Complete",
    "ErdosRenyi",
    "Exponential",
    "GraphFile",
    "Links",
    "Mixing",
    "PrivateSums",
    "Ring",
    "SecureSums",
    "Star",
    "Sums",
    "Topology",
    "Torus",
    "Upload",
    "WeightedSum",
    "Weighting",
    "adding",
    "client_weights",
    "cosine_attention",
    "cosines",
    "distance_attention",
    "nbytes",
    "pack",
    "quantile_from_sums",
    "restored",
    "stored",
    "unpack",
]
