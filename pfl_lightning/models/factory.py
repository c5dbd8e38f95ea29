"""What makes a network: a class of ours, of the user's or of a library, or a function that returns a module."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from pfl_lightning.errors import PflError, is_out_of_memory, one_line
from pfl_lightning.models.hugging_face import HuggingFaceModel
from pfl_lightning.models.network import Network
from pfl_lightning.objects import AnyModule, unwrap_partial


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
