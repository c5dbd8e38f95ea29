"""What makes a network: a class of ours, of the user's or of a library, or a function that returns a module."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from pfl_lightning.imports import AnyModule, unwrap_partial
from pfl_lightning.models.hugging_face import HuggingFaceModel
from pfl_lightning.models.network import Network


class _Module(metaclass=AnyModule):
    """For the parser, any ``nn.Module``; it only offers our own networks by short name."""

    offered = (Network, HuggingFaceModel)


if TYPE_CHECKING:
    NetworkFactory = Callable[..., nn.Module]
else:

    class NetworkFactory(Protocol):
        """Makes a network; the parser skips these two arguments, which come from the data set."""

        def __call__(self, input_shape: tuple[int, ...], num_classes: int) -> _Module:
            """Make it."""


def made(make: NetworkFactory, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Call a factory with the arguments that it accepts.

    These are ``input_shape`` and ``num_classes`` if it has parameters with these names, and ``num_classes`` if it takes
    ``**kwargs``. A function with neither, but with two arguments, gets both in this order.

    Args:
        make: A class, a function, or a partial of one.
        input_shape: Shape of one input.
        num_classes: Number of classes.
    """
    target = unwrap_partial(make)
    parameters = signature(target).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    given: dict[str, Any] = {"input_shape": input_shape, "num_classes": num_classes}
    named = {name: value for name, value in given.items() if name in parameters}
    if Parameter.VAR_KEYWORD in kinds:
        named["num_classes"] = num_classes
    if not named and not isinstance(target, type) and kinds == [Parameter.POSITIONAL_OR_KEYWORD] * 2:
        return make(input_shape, num_classes)
    return make(**named)
