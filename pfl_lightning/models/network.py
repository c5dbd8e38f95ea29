from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Literal, cast

from torch import nn

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
        body, found = network.cut(head)
        super().__init__(nothing=frozenset(), head=found, body=body, all=body | found)
        self.network = network

    @property
    def patterns(self) -> dict[str, list[str]]:
        """The patterns and kinds that were asked for, and the tensors that match, by the names that users see."""
        asked = [*self][4:]
        return {each: sorted(map(self.network.own_name, self[each])) for each in asked}

    def __missing__(self, pattern: str) -> frozenset[str]:
        if "|" in pattern:
            return frozenset[str]().union(*(self[each.strip()] for each in pattern.split("|")))
        own_names = {name: self.network.own_name(name) for name in self["all"]}
        layers = self.network.named_modules() if pattern else ()
        kinds = [path for path, layer in layers if any(k.__name__.startswith(pattern) for k in type(layer).__mro__)]
        within = tuple(f"{path}." for path in kinds)
        found = frozenset(n for n, own in own_names.items() if fnmatchcase(own, pattern) or n.startswith(within))
        if not found:
            raise PflError(
                f"model.keeps, or a part in the method: {pattern} matches no tensor of {self.network.kind}; allowed: "
                f"{', '.join(self)}, a pattern such as {min(own_names.values())}, or a kind of layers such as Linear"
            )
        return self.setdefault(pattern, found)


class Network(nn.Sequential):
    """A network as an ordered list of named layers; the method's ``head`` cuts it into body and head.

    The first two arguments of every subclass are the shape of one input and the number of classes; the data set fills
    them in. For tokens ``[batch, length]`` the input shape is ``(length, vocabulary)``, as a token stands for a one-hot
    row. ``takes`` is the kind of inputs that the network accepts.
    """

    takes: InputKind = "numbers"
    extension: frozenset[str] = frozenset()  # names of the tensors that a method has added
    given: frozenset[str] = frozenset()  # names of the tensors that a file or a folder has given

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__(OrderedDict(_apart(layers)))

    def cut(self, head: int | str | Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the tensors (parameters and buffers that are not frozen) of body and head.

        Args:
            head: The head: a number of layers with parameters that train, counted from the output, or the names of
                layers or of modules inside of them.

        Raises:
            PflError: If there are no such layers, or none would be left for the body.
        """
        units, names = self.units, frozenset(movable(self))
        if isinstance(head, int):
            chosen = units[-head:] if 0 < head < max(len(units), 2) else []
        else:
            chosen = [head] if isinstance(head, str) else list(head)
        parts = [
            frozenset(name for name in names if f"{self.own_name(name)}.".startswith(f"{path}.")) for path in chosen
        ]
        found = frozenset[str]().union(*parts) - self.extension
        if not parts or not all(parts) or (found == names and len(units) > 1):
            allowed = f"1 to {max(len(units) - 1, 1)}, or some of {', '.join(units)}"
            raise PflError(f"model.head: {head} is not possible; allowed: {allowed}, the layers of {self.kind}")
        return names - found, found

    def linear_head(self, names: frozenset[str]) -> str:
        """Path of the linear layer that a head begins with.

        Args:
            names: Names of the head's tensors.

        Raises:
            PflError: If it begins with another layer.
        """
        first = next(name for name in self.state_dict() if name in names)
        path = first.rpartition(".")[0]
        if not isinstance(self.get_submodule(path), nn.Linear):
            raise PflError(f"model.head: {first} is not possible; allowed: a head that begins with a linear layer")
        return path

    def extend_head(self, head: int | str | Sequence[str], make: Callable[[nn.Linear], nn.Linear]) -> None:
        """Replace the linear layer that the head begins with; what the new one has beside it belongs to the body.

        Args:
            head: See ``cut``.
            make: Makes the new layer of the old one, such as an ``ExtendedLinear``.
        """
        before, path = frozenset(self.state_dict()), self.linear_head(self.cut(head)[1])
        self.set_submodule(path, make(cast(nn.Linear, self.get_submodule(path))))
        self.extension = frozenset(self.state_dict()) - before

    def parts(self, head: int | str | Sequence[str]) -> Parts:
        """Names of the tensors of each part; see ``cut``."""
        return Parts(self, head)

    @property
    def kind(self) -> str:
        """Name of the network's class."""
        return type(self).__name__

    @property
    def units(self) -> list[str]:
        """Names of the layers with parameters that train, from the input to the output."""
        return [name for name, layer in self.named_children() if trains(layer.parameters())]

    def own_name(self, name: str) -> str:
        """The name of a tensor as users see it; for our own networks, the network's."""
        return name

    def module_with(self, tensors: Tree) -> nn.Module:
        """A copy of the network with these tensors, ``[...]`` each, and all others as they are."""
        module = deepcopy(self)
        module.load_state_dict(tensors, strict=False)
        return module


def _apart(layers: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The layers, of which one that comes again is another module with the same tensors."""
    seen = set[int]()
    for name, layer in layers.items():
        tensors = {id(tensor): tensor for tensor in (*layer.parameters(), *layer.buffers())}
        yield name, deepcopy(layer, tensors) if id(layer) in seen else layer
        seen.add(id(layer))


class ExtendedLinear(nn.Linear):
    """A linear layer with tensors of its own beside the weight and the bias of another one, which it takes over.

    Args:
        layer: The other layer.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None)
        self.weight, self.bias = layer.weight, layer.bias


def trains(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether any of these parameters trains."""
    return any(parameter.requires_grad for parameter in parameters)


def outputs(num_classes: int) -> int:
    """Number of outputs of a classifier: two classes need only one, the logit of the second."""
    return 1 if num_classes == 2 else num_classes


def check_images(network: str, input_shape: tuple[int, ...], smallest: int) -> None:
    """Check that inputs are images of at least ``smallest`` x ``smallest`` pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        allowed = f"images of at least {smallest} x {smallest}"
        raise PflError(f"model.network: {network} takes {allowed}; these inputs are {input_shape}")
