from collections import OrderedDict
from typing import ClassVar, Literal

from torch import nn

from pfl_lightning.errors import PflError

Part = Literal["nothing", "head", "body", "all"]
InputKind = Literal["numbers", "tokens", "padded tokens"]


class Network(nn.Sequential):
    """A network as an ordered list of named layers; the method's ``head_layers`` cuts it into body and head.

    The first two arguments of every subclass are the shape of one input and the number of classes; the data set fills
    them in. For tokens ``[batch, length]`` the input shape is ``(length, vocabulary)``: a token stands for a one-hot
    row. ``takes`` is the kind of inputs that the network accepts.
    """

    takes: ClassVar[InputKind] = "numbers"

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__(OrderedDict(layers))

    def cut(self, head_layers: int) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the tensors (parameters and buffers) of body and head.

        Args:
            head_layers: Number of layers with parameters that form the head, counted from the output.

        Raises:
            PflError: If that leaves no layer for the body, or none for the head.
        """
        layers = [name for name, layer in self.named_children() if any(True for _ in layer.parameters())]
        if not 0 < head_layers < max(len(layers), 2):
            allowed = f"1 to {max(len(layers) - 1, 1)} ({type(self).__name__} has {len(layers)} layers with parameters)"
            raise PflError(f"model.head_layers: {head_layers} is not possible; allowed: {allowed}")
        heads = set(layers[-head_layers:])
        names = list(self.state_dict())
        head = frozenset(name for name in names if name.split(".")[0] in heads)
        return frozenset(names) - head, head

    def parts(self, head_layers: int) -> dict[Part, frozenset[str]]:
        """Names of the tensors of each part; see ``cut``."""
        body, head = self.cut(head_layers)
        return {"nothing": frozenset(), "head": head, "body": body, "all": body | head}


def outputs(num_classes: int) -> int:
    """Number of outputs of a classifier: two classes need only one, the logit of the second."""
    return 1 if num_classes == 2 else num_classes


def check_images(network: str, input_shape: tuple[int, ...], smallest: int) -> None:
    """Check that inputs are images of at least ``smallest`` x ``smallest`` pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        allowed = f"images of at least {smallest} x {smallest}"
        raise PflError(f"model.network: {network} takes {allowed}; these inputs are {input_shape}")
