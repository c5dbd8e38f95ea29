"""What makes a network, or those of different clients: classes of ours or of others, or functions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from pfl_lightning.bounds import NonNegativeInt, PositiveInt, Share
from pfl_lightning.errors import PflError, is_out_of_memory, one_line
from pfl_lightning.models.hugging_face import HuggingFaceModel
from pfl_lightning.models.network import Network
from pfl_lightning.objects import AnyModule, unwrap_partial
from pfl_lightning.seeding import seed_of


class _Module(metaclass=AnyModule):
    """For the parser, any ``nn.Module``; it only offers our own networks by short name."""

    offered = (Network, HuggingFaceModel)


if TYPE_CHECKING:
    NetworkFactory = Callable[..., nn.Module]
else:

    class NetworkFactory(Protocol):
        """Makes a network; the parser skips these arguments, which come from the data set."""

        def __call__(self, input_shape: tuple[int, ...], num_classes: int, output_shape: tuple[int, ...]) -> _Module:
            """Make the network."""


class Architectures(nn.ModuleList):
    """Clients have different networks: client i has number i modulo their number, unless ``clients`` says otherwise.

    What clients share must have the same names and shapes in all of these networks; what they keep may be anything.

    Args:
        input_shape: Shape of one input.
        num_classes: Number of classes.
        output_shape: Shape of the outputs for one input.
        networks: The networks, such as ``ConvNet`` with other ``hidden`` layers.
        clients: Whose each network is: how many clients have it, or which share of them, drawn by ``seed``; or the
            numbers of its clients.
        width: Number of features before the head of each network, which is one linear layer of the name ``head``: other
            numbers of them are pooled by averages. Default: networks stay as they are.
        seed: Seed of the draw.

    Raises:
        PflError: If there is no network, or the features of one cannot be pooled.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        output_shape: tuple[int, ...],
        networks: Sequence[NetworkFactory] = (),
        clients: Sequence[NonNegativeInt | Share | Sequence[NonNegativeInt]] | None = None,
        width: PositiveInt | None = None,
        seed: NonNegativeInt = 0,
    ) -> None:
        if not networks:
            raise PflError("model.network.networks must be one network or more, got none")
        made = []
        start = torch.initial_seed()
        for factory in networks:
            torch.manual_seed(start)  # networks that are alike begin alike
            module = make_module(factory, input_shape, num_classes, output_shape)
            if width is not None:
                pool_features(module, width)
            made.append(module)
        super().__init__(made)
        self.clients = clients
        self.seed = seed

    @classmethod
    def of(cls, module: nn.Module) -> "Architectures":
        """A single network, which all clients have."""
        single = cls.__new__(cls)
        nn.ModuleList.__init__(single, [module])
        single.clients = None
        single.seed = 0
        return single

    def members(self, num_clients: int) -> list[Tensor]:
        """The clients of each network, rising, ``[members]``.

        Raises:
            PflError: If a client has no network, or several, or a network no client.
        """
        everyone = torch.arange(num_clients)
        found: list[Tensor] = []
        wanted: list[Any] = [*(self.clients or ())]
        if self.clients is None:
            found = [everyone[number :: len(self)].clone() for number in range(len(self))]
        elif all(isinstance(clients, Sequence) for clients in wanted):
            found = [torch.tensor(clients, dtype=torch.int64).sort().values for clients in wanted]
        elif not any(isinstance(clients, Sequence) for clients in wanted):
            has_shares = any(isinstance(clients, float) for clients in wanted)
            ends = [round(end * (num_clients if has_shares else 1)) for end in accumulate(wanted)]
            source = torch.Generator().manual_seed(seed_of(self.seed, "architectures"))
            drawn = torch.randperm(num_clients, generator=source).tensor_split(ends)
            found = [part.sort().values for part in drawn[:-1]] if ends[-1] == num_clients else []
        is_complete = torch.equal(torch.cat([everyone[:0], *found]).sort().values, everyone)
        if len(found) != len(self) or not all(map(len, found)) or not is_complete:
            raise PflError(
                f"model.network.clients must give each of {num_clients} clients one of {len(self)} networks, and each "
                f"network a client, got {self.clients}"
            )
        return found


def pool_features(module: nn.Module, width: int) -> None:
    """Give a network a head of the name ``head`` on so many features, in place.

    Raises:
        PflError: If it does not end with a linear layer, or is none of ours.
    """
    name, head = [("", module), *module.named_children()][-1]
    if not (isinstance(module, Network) and isinstance(head, nn.Linear)):
        raise PflError(
            f"model.network.width: {width} is not possible with {type(module).__name__}; allowed: null, or a network "
            "of this package that ends with a linear layer"
        )
    delattr(module, name)
    if head.in_features != width:
        module.add_module("pool", nn.AdaptiveAvgPool1d(width))
    module.add_module("head", nn.Linear(width, head.out_features))


_Module.offered = (*_Module.offered, Architectures)


def make_module(
    factory: NetworkFactory, input_shape: tuple[int, ...], num_classes: int, output_shape: tuple[int, ...]
) -> nn.Module:
    """Call a factory with the arguments that it accepts.

    These are ``input_shape``, ``num_classes`` and ``output_shape`` if it has parameters with these names, and
    ``num_classes`` if it takes ``**kwargs``. A function with none of them, but with two arguments, gets the first two
    in this order.

    Args:
        factory: A class, a function, or a partial of one.
        input_shape: Shape of one input.
        num_classes: Number of classes.
        output_shape: Shape of the outputs for one input.

    Raises:
        PflError: If it is something else, raises an error or makes something else.
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        kind = type(factory).__name__
        raise PflError(f"model.network must be a class or a function that makes a module, got {kind}")
    target = unwrap_partial(factory)
    name = getattr(target, "__name__", type(target).__name__)
    with network_errors(f"{name} cannot be made"):
        module = _call(factory, target, input_shape, num_classes, output_shape)
    if not isinstance(module, nn.Module):
        raise PflError(f"model.network: {name} must make a torch module, got {type(module).__name__}")
    return module


def _call(
    factory: NetworkFactory, target: Any, input_shape: tuple[int, ...], num_classes: int, output_shape: tuple[int, ...]
) -> Any:
    parameters = signature(target).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    values: dict[str, Any] = {"input_shape": input_shape, "num_classes": num_classes, "output_shape": output_shape}
    arguments = {name: value for name, value in values.items() if name in parameters}
    if Parameter.VAR_KEYWORD in kinds:
        arguments["num_classes"] = num_classes
    if not arguments and not isinstance(target, type) and kinds == [Parameter.POSITIONAL_OR_KEYWORD] * 2:
        return factory(input_shape, num_classes)
    return factory(**arguments)


@contextmanager
def network_errors(problem: str) -> Iterator[None]:
    """Turn whatever a user's network raises into one line.

    Args:
        problem: What it cannot do.

    Raises:
        PflError: If anything is raised.
    """
    try:
        yield
    except PflError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            problem = "too large for the memory"
        raise PflError(f"model.network: {problem}: {one_line(error)}") from error
