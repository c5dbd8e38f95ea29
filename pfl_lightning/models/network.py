from collections import OrderedDict

from torch import nn

from pfl_lightning.errors import PflError


class Network(nn.Sequential):
    """A network as an ordered list of named layers; the method's ``head_layers`` cuts it into body and head.

    Every subclass takes the shape of one input and the number of classes first, since the data set fills them in.
    """

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__(OrderedDict(layers))

    def cut(self, head_layers: int) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the tensors (parameters and buffers) of body and head.

        Args:
            head_layers: How many of the layers that have parameters form the head, counted from the end.

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
