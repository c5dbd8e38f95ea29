from pfl_lightning.server.aggregator import Aggregator, Upload, WeightedSum
from pfl_lightning.server.distances import (
    Bulyan,
    CenteredClipping,
    FLTrust,
    GeometricMedian,
    Krum,
    NearestNeighbours,
    NormClipping,
    WeightedVote,
)
from pfl_lightning.server.dp_aggregator import DPAggregator, clipped
from pfl_lightning.server.messages import Message, nbytes, pack_tensors, packed_bits, unpack_tensors
from pfl_lightning.server.mixing_matrix import Mixing, MixingMatrix
from pfl_lightning.server.quantile import ClientSums, quantile_from_sums
from pfl_lightning.server.secure_aggregator import SecureAggregator
from pfl_lightning.server.topology import Complete, ErdosRenyi, Exponential, GraphFile, Ring, Star, Topology, Torus
from pfl_lightning.server.votes import Mean, Median, TrimmedMean, Vote
from pfl_lightning.server.weights import (
    Weighting,
    client_weights,
    cosine_attention,
    cosines,
    distance_attention,
    least_on_simplex,
    nearest_on_simplex,
    overlap_attention,
    principal_coordinates,
    similarity_attention,
    spread_on_simplex,
)
from pfl_lightning.server.yogi import Yogi

__all__ = [
    "Aggregator",
    "Bulyan",
    "CenteredClipping",
    "ClientSums",
    "Complete",
    "DPAggregator",
    "ErdosRenyi",
    "Exponential",
    "FLTrust",
    "GeometricMedian",
    "GraphFile",
    "Krum",
    "Mean",
    "Median",
    "Message",
    "Mixing",
    "MixingMatrix",
    "NearestNeighbours",
    "NormClipping",
    "Ring",
    "SecureAggregator",
    "Star",
    "Topology",
    "Torus",
    "TrimmedMean",
    "Upload",
    "Vote",
    "WeightedSum",
    "WeightedVote",
    "Weighting",
    "Yogi",
    "client_weights",
    "clipped",
    "cosine_attention",
    "cosines",
    "distance_attention",
    "least_on_simplex",
    "nbytes",
    "nearest_on_simplex",
    "overlap_attention",
    "pack_tensors",
    "packed_bits",
    "principal_coordinates",
    "quantile_from_sums",
    "similarity_attention",
    "spread_on_simplex",
    "unpack_tensors",
]
