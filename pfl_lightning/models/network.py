from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Literal, cast

import torch
from torch import Tensor, nn

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.tree import Tree, movable

Part = str  # a key of Parts
InputKind = Literal["numbers", "tokens", "padded tokens"]
Head = PositiveInt | str | list[str]


class Parts(dict[Part, frozenset[str]]):
    """Names of the tensors of each part of a network: ``nothing``, ``head``, ``body`` and ``all``.

    Any other key is a pattern of tensors' names, such as ``*.bn1.*``, or the kind of some layers, such as ``BatchNorm``
    or ``Linear``; its part are all tensors that match. Several keys with ``|`` between them are all of their parts.

    Args:
        network: The network.
        head: See ``Network.cut``.
    """

    def __init__(self, network: "Network", head: int | str | Sequence[str]) -> None:
        body_names, head_names = network.cut(head)
        super().__init__(nothing=frozenset(), head=head_names, body=body_names, all=body_names | head_names)
        self.network = network

    @property
    def patterns(self) -> dict[str, list[str]]:
        """The patterns and kinds that were looked up, and the tensors that match, by the names that users see."""
        return {key: sorted(map(self.network.original_name, self[key])) for key in [*self][4:]}

    def __missing__(self, pattern: str) -> frozenset[str]:
        if "|" in pattern:
            return frozenset[str]().union(*(self[key.strip()] for key in pattern.split("|")))
        originals = {name: self.network.original_name(name) for name in self["all"]}
        prefixes = tuple(f"{path}." for path, layer in self.network.named_modules() if _is_kind(layer, pattern))
        matches = frozenset(
            name for name, original in originals.items() if fnmatchcase(original, pattern) or name.startswith(prefixes)
        )
        if not matches:
            raise PflError(
                f"model.keeps, or a part in the method: {pattern} matches no tensor of {self.network.kind}; allowed: "
                f"{', '.join(self)}, a pattern such as {min(originals.values())}, or a kind of layers such as Linear"
            )
        return self.setdefault(pattern, matches)


def _is_kind(layer: nn.Module, kind: str) -> bool:
    """Whether the name of a layer's class, or of one of its bases, begins with a word."""
    return bool(kind) and any(base.__name__.startswith(kind) for base in type(layer).__mro__)


class Network(nn.Sequential):
    """A network as an ordered list of named layers; the method's ``head`` cuts it into body and head.

    The first two arguments of every subclass are the shape of one input and the number of classes; the data set fills
    them in. For tokens ``[batch, length]`` the input shape is ``(length, vocabulary)``, as a token stands for a one-hot
    row. ``takes`` is the kind of inputs that the network accepts.
    """

    takes: InputKind = "numbers"
    extension: frozenset[str] = frozenset()  # names of the tensors that a method has added
    frozen_output = ""  # path of the layer that the outputs come from, if it has parameters that do not train
    adapters_alone = False  # whether it has no head that trains beside adapters
    headless = False  # whether the layer that the outputs come from has no tensors of its own that train
    pretrained: frozenset[str] = frozenset()  # names of the tensors that come from a file or a folder

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__(OrderedDict(_without_repeats(layers)))

    def cut(self, head: int | str | Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the tensors (parameters and buffers that are not frozen) of body and head.

        Args:
            head: The head: a number of layers with parameters that train, counted from the output, or the names of
                layers or of modules inside of them. By number, a ``headless`` network has none.

        Raises:
            PflError: If there are no such layers, or none would be left for the body, or the last layer does not train,
                as of a peft model without ``task_type``.
        """
        if self.frozen_output and isinstance(head, int):
            last = f"{self.frozen_output}, the last layer of {self.kind}, does not train (requires_grad is False)"
            raise PflError(f"model.head must be the names of layers, since {last}")
        layers = self.trainable_layers
        names = frozenset(movable(self))
        if self.headless and isinstance(head, int):
            return names, frozenset()
        if isinstance(head, int):
            paths = layers[-head:] if 0 < head < max(len(layers), 2) else []
        else:
            paths = [head] if isinstance(head, str) else list(head)
        parts = [{name for name in names if f"{self.original_name(name)}.".startswith(f"{path}.")} for path in paths]
        head_names = frozenset[str]().union(*parts) - self.extension
        if not parts or not all(parts) or (head_names == names and len(layers) > 1):
            allowed = f"1 to {max(len(layers) - 1, 1)}, or some of {', '.join(layers)}"
            raise PflError(f"model.head: {head} is not possible; allowed: {allowed}, the layers of {self.kind}")
        return names - head_names, head_names

    def linear_head(self, names: frozenset[str], alone: bool = False) -> str:
        """Path of the linear layer that a head begins with.

        Args:
            names: Names of the head's tensors.
            alone: Whether it must be the only one.

        Raises:
            PflError: If it begins with another layer, or has more, or there is none.
        """
        first = next((name for name in self.state_dict() if name in names), "")
        if not first:
            raise PflError(f"model.head must begin with a linear layer, {self.kind} has no head")
        path = first.rpartition(".")[0]
        if not isinstance(self.get_submodule(path), nn.Linear):
            raise PflError(f"model.head must begin with a linear layer, got {first}")
        layers = sorted({name.rpartition(".")[0] for name in names})
        if alone and layers != [path]:
            raise PflError(f"model.head must be one linear layer, got {', '.join(layers)}")
        return path

    def extend_head(self, head: int | str | Sequence[str], make: Callable[[nn.Linear], nn.Linear]) -> None:
        """Replace the linear layer that the head begins with; the tensors that this adds belong to the body.

        Args:
            head: See ``cut``.
            make: Makes the new layer from the old one, such as an ``ExtendedLinear``.
        """
        names = frozenset(self.state_dict())
        path = self.linear_head(self.cut(head)[1])
        self.set_submodule(path, make(cast(nn.Linear, self.get_submodule(path))))
        self.extension = frozenset(self.state_dict()) - names

    def parts(self, head: int | str | Sequence[str]) -> Parts:
        """Names of the tensors of each part; see ``cut``."""
        return Parts(self, head)

    @classmethod
    def check_images(cls, input_shape: tuple[int, ...], smallest: int) -> None:
        """Check that inputs are images of at least ``smallest`` x ``smallest`` pixels.

        Raises:
            PflError: If they are not.
        """
        if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
            allowed = f"images of at least {smallest} x {smallest}"
            raise PflError(f"model.network: {cls.__name__} takes {allowed}, got inputs of {input_shape}")

    @property
    def kind(self) -> str:
        """Name of the network's class."""
        return type(self).__name__

    @property
    def trainable_layers(self) -> list[str]:
        """Names of the layers with parameters that train, from the input to the output."""
        return [name for name, layer in self.named_children() if trains(layer.parameters())]

    def original_name(self, name: str) -> str:
        """The name of a tensor as users see it: in the module that was wrapped, if one was."""
        return name

    def module_with(self, tensors: Tree) -> nn.Module:
        """A copy of the network with these tensors, ``[...]`` each, and all others as they are."""
        module = deepcopy(self)
        module.load_state_dict(tensors, strict=False)
        return module


def _without_repeats(layers: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The layers; one that comes again is replaced by a copy that shares its tensors."""
    seen = set[int]()
    for name, layer in layers.items():
        yield name, copy_with_same_tensors(layer) if id(layer) in seen else layer
        seen.add(id(layer))


def copy_with_same_tensors(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its parameters and buffers."""
    return deepcopy(module, {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())})


class ExtendedLinear(nn.Linear):
    """Base of linear layers with further tensors, which take over the weight and the bias of a plain layer.

    Args:
        layer: The plain layer.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None)
        self.weight = layer.weight
        self.bias = layer.bias


def trains(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether any of these parameters trains."""
    return any(parameter.requires_grad for parameter in parameters)


def two_inputs(input_shape: tuple[int, ...], kind: InputKind) -> Tensor:
    """Two random inputs, ``[2, ...]``; for tokens, whose input shape is ``(length, vocabulary)``, without padding."""
    if kind == "numbers":
        return torch.randn(2, *input_shape)
    length, vocabulary = input_shape
    return torch.randint(1, max(vocabulary, 2), (2, length))


def num_outputs(num_classes: int) -> int:
    """Number of outputs of a classifier: two classes need only one, the logit of the second."""
    return 1 if num_classes == 2 else num_classes
