from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.memory import is_exhausted
from pfl_lightning.models.network import Network
from pfl_lightning.seeding import seed_of

NetworkFactory = Callable[[tuple[int, ...], int], Network]


def start_network(
    make: NetworkFactory, input_shape: tuple[int, ...], num_classes: int, seed: int, pretrained: Mapping[str, Tensor]
) -> Network:
    """Make a network; its initial weights only depend on the seed, not on the state of torch's generator.

    Args:
        make: Builds the network.
        input_shape: Shape of one input.
        num_classes: Number of classes.
        seed: Seed of the initial weights.
        pretrained: Pretrained tensors by name; names that the network does not have are ignored.

    Raises:
        PflError: If the network does not fit the inputs or the memory, or a pretrained tensor does not fit the network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "network"))
        network = _made(make, input_shape, num_classes)
    tensors = network.state_dict()
    for name in tensors.keys() & pretrained.keys():
        if tensors[name].shape != pretrained[name].shape:
            raise PflError(
                f"model.network: {type(network).__name__} has {name} of shape {tuple(tensors[name].shape)}; the data "
                f"set has pretrained values of shape {tuple(pretrained[name].shape)}"
            )
        tensors[name].copy_(pretrained[name])
    return network


def _made(make: NetworkFactory, input_shape: tuple[int, ...], num_classes: int) -> Network:
    """Make a network; if memory does not suffice, say that it is because of the network."""
    try:
        return make(input_shape, num_classes)
    except (MemoryError, RuntimeError) as error:
        if not is_exhausted(error):
            raise
        raise PflError(f"model.network: too large for the memory, {one_line(error)}; allowed: a smaller one") from error
