"""Clients with adapters of unequal ranks, each with an ordinary network of its own."""

from fakes.methods import tensors
from pfl_lightning.models import MLP, LoRA

RANKS = [3, 1, 2]
SCALE = 2.0
LAYERS = ("fc1", "fc2")
ADAPTER = LoRA(3, alpha=3 * SCALE, targets=[*LAYERS])
OPTIONS = {"epochs": 2, "momentum": 0.5, "weight_decay": 0.01}
ENTRIES = 256 + 8 + 8 + 5  # of each rank, in layers of 256 by 8 and 8 by 5
HEAD = (5 + 1) * 3


def of_rank(model, rank):
    """The adapters of a smaller rank, and all else."""
    ends = {"A": (slice(rank),), "B": (slice(None), slice(rank))}
    return {name: tensor[ends[name[-1]]].clone() if "lora" in name else tensor for name, tensor in model.items()}


def network_of_rank(rank, data, start):
    """An ordinary network with adapters of some rank."""
    network = MLP(data.input_shape, 3, hidden=(8, 5))
    LoRA(rank, alpha=rank * SCALE, targets=[*LAYERS]).add_to(network, 1)
    network.load_state_dict(of_rank(start, rank))
    return network


def product(model, layer):
    """B A of a layer."""
    return model[f"{layer}.lora_B"] @ model[f"{layer}.lora_A"]


def shared(method):
    """Copies of the adapters and the head at the server."""
    return {name: tensor for name, tensor in tensors(method.network).items() if name in method.parts["all"]}
