"""Which kinds of layers a network has, and which of them a phase does not change.

A network can mark its layers with two attributes: ``without_vmap`` if ``vmap`` cannot run the layer, and
``draws_at_random`` if the layer is random in training mode, beyond torch's own dropout layers.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key, next_words, random_words
from pfl_lightning.tree import Tree, constants_of, movable

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SLOW_WHEN_BATCHED_ON_CPU = (*CONVOLUTION, nn.RNN, nn.LSTM, nn.GRU)  # slower than a loop, unlike models.recurrent


def has_layers(network: nn.Module, kinds: tuple[type[nn.Module], ...], names: Collection[str]) -> bool:
    """Whether the network has layers of these kinds that hold one of these tensors."""
    return any(isinstance(module, kinds) and holds(path, module, names) for path, module in network.named_modules())


def is_random(network: nn.Module) -> bool:
    """Whether a network draws random numbers in training mode."""
    return any(map(_draws, network.modules()))


def needs_torchs_stream(network: nn.Module) -> bool:
    """Whether a network draws random numbers in other layers than those that ``with_streams`` replaces."""
    return any(_draws(module) and type(module) not in (nn.Dropout, StreamDropout) for module in network.modules())


def with_streams(network: nn.Sequential) -> nn.Sequential:
    """The same network, in which dropout draws from streams; its modules change."""
    for path, layer in [*network.named_modules(remove_duplicate=False)]:
        if type(layer) is nn.Dropout:
            network.set_submodule(path, StreamDropout(layer))
    return network


def streams(network: nn.Module, key: Key, ids: Tensor) -> Tree:
    """The beginning of the streams of each client, ``[clients]`` by name, which are tensors like those of a network."""
    return {name: random_words((*key, name), ids, 1)[:, 0] for name in _stream_names(network)}


def rewinding(network: nn.Module, tensors: Tree) -> Callable[[], None]:
    """What makes a network draw again what it draws after this, so that other tensors meet the same dropout.

    Args:
        network: The network.
        tensors: Its streams by name, among others.
    """
    before = {name: tensors[name].clone() for name in _stream_names(network)}
    seed = int(torch.randint(2**62, ())) if needs_torchs_stream(network) else None

    def rewind() -> None:
        for name, stream in before.items():
            tensors[name].copy_(stream)
        if seed is not None:
            torch.manual_seed(seed)

    rewind()
    return rewind


class StreamDropout(nn.Dropout):
    """Dropout that draws from a stream of random words: the same mask wherever, and with whomever, a client trains.

    Args:
        layer: Torch's layer.

    Attributes:
        stream: Where the stream is, int64 ``[]``; each mask moves it on.
    """

    stream: Tensor

    def __init__(self, layer: nn.Dropout) -> None:
        super().__init__(layer.p, layer.inplace)
        self.train(layer.training)
        self.stays_in_eval = getattr(layer, "stays_in_eval", False)
        self.register_buffer("stream", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Drop numbers in training mode."""
        if not self.training or self.p == 0:
            return input
        noise = dropout_noise(self.stream, input, self.p)
        return input.mul_(noise) if self.inplace else input * noise


def dropout_noise(streams: Tensor, like: Tensor, probability: float) -> Tensor:
    """What dropout multiplies numbers with: 0, or what keeps their mean.

    Args:
        streams: The stream of each client, ``[clients]``, or of one, ``[]``; they move on.
        like: The numbers, ``[clients, ...]``, or those of one client, ``[...]``.
        probability: That of 0.
    """
    count = like[0].numel() if streams.ndim else like.numel()
    words = next_words(streams, -(-count // 2))
    bits = torch.stack([words >> 32, words << 32 >> 32], -1).flatten(-2)  # both halves of each word, in [-2^31, 2^31)
    survives = bits[..., :count].reshape(like.shape) > round(probability * 2**32) - 2**31 - 1
    return survives.to(like.dtype) / (1 - probability or 1)


def _stream_names(network: nn.Module) -> list[str]:
    return [f"{path}.stream" for path, layer in network.named_modules() if isinstance(layer, StreamDropout)]


def _draws(module: nn.Module) -> bool:
    return (isinstance(module, DROPOUT) and module.p > 0) or getattr(module, "draws_at_random", False)


def layers_without_vmap(network: nn.Sequential) -> list[str]:
    """The layers that can only run for one client at a time."""
    return [name for name, layer in network.named_children() if getattr(layer, "without_vmap", False)]


def partly_trained_layers(network: nn.Sequential, trainable: Collection[str]) -> list[str]:
    """The layers that have some, but not all, of their parameters in ``trainable``."""
    parameters = {
        layer: [f"{layer}.{name}" for name, _ in inner.named_parameters()] for layer, inner in network.named_children()
    }
    return [layer for layer, names in parameters.items() if 0 < sum(name in trainable for name in names) < len(names)]


def part(network: nn.Sequential, start: int, stop: int | None = None) -> nn.Sequential:
    """The layers ``start`` to ``stop - 1`` under their own names; the modules themselves, not copies."""
    return nn.Sequential(OrderedDict(list(network.named_children())[start:stop]))


def frozen_layers(network: nn.Sequential, trainable: Collection[str]) -> int:
    """Number of leading layers whose output stays the same while ``trainable`` train; 0 if they have no parameters.

    They end before a layer that draws at random, such as dropout, because its output differs in every step.
    """
    return _leading(network, lambda name, layer: holds(name, layer, trainable) or is_random(layer))


def layers_before(network: nn.Sequential, head: Collection[str], key: str = "model.network") -> int:
    """Number of layers before the head; their outputs are the features.

    Args:
        network: The network.
        head: Names of the head's tensors.
        key: The option of the network.

    Raises:
        PflError: If there is no body, or the head is not made of the last layers.
    """
    layers = list(network.named_children())
    first = next((number for number, (name, layer) in enumerate(layers) if holds(name, layer, head)), 0)
    if {*movable(part(network, first))} - {*head} or not part(network, 0, first).state_dict():
        allowed = "allowed: a body, and a head that is the last layers"
        names = ", ".join(sorted({name.partition(".")[0] for name in head}))
        raise PflError(f"{key}: this head ({names}) has no features; {allowed}")
    return first


def shared_layers(network: nn.Sequential, stacks: Collection[str]) -> int:
    """Number of leading layers without any of the tensors that differ between clients; 0 if they have no parameters."""
    return _leading(network, lambda name, layer: holds(name, layer, stacks))


def _leading(network: nn.Sequential, ends: Callable[[str, nn.Module], bool]) -> int:
    layers = list(network.named_children())
    leading = next((number for number, (name, layer) in enumerate(layers) if ends(name, layer)), len(layers))
    return leading if any(True for _ in part(network, 0, leading).parameters()) else 0


def set_mode(network: nn.Module, trainable: Collection[str]) -> None:
    """Set training mode, except for layers with state, such as running statistics, that is not trained."""
    network.train()
    stored = network.state_dict().keys()
    for path, module in network.named_modules():
        fixed = {*constants_of(module)} - {"running_mean"}  # which adapters freeze, and training would move
        state = {f"{path}.{name}" for name, _ in module.named_buffers(recurse=False) if name not in fixed} & stored
        if getattr(module, "stays_in_eval", False) or (state and state.isdisjoint(trainable)):
            module.training = False  # but not that of the layers inside


def tensor_names(network: nn.Module) -> set[str]:
    """The names of the tensors of a network, and of the streams of its dropout."""
    return {*network.state_dict(), *(name for name, _ in network.named_buffers())}


def channels_last(inputs: Tensor, batch_dimensions: int) -> Tensor:
    """Put images in the memory layout that is fastest for convolutions on a CPU; other inputs stay as they are.

    Args:
        inputs: Inputs; images are ``[..., channels, height, width]``.
        batch_dimensions: How many dimensions come before those of a sample.
    """
    if inputs.device.type != "cpu" or inputs.ndim != batch_dimensions + 3:
        return inputs
    if inputs.shape[-3] == 1:  # torch holds one channel for channels-last already, but then computes as if it were not
        return inputs.contiguous().squeeze(-3).unsqueeze(-1).movedim(-1, -3)
    return inputs.movedim(-3, -1).contiguous().movedim(-1, -3)


def holds(path: str, module: nn.Module, names: Collection[str]) -> bool:
    """Whether the module at this path holds one of the named tensors."""
    return any(f"{path}.{name}" in names for name in module.state_dict())
