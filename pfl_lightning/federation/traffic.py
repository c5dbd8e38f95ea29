from collections.abc import Mapping, Set

from pfl_lightning.server import nbytes, pack
from pfl_lightning.system import model_bits
from pfl_lightning.tree import Tree


class Traffic:
    """Counts the messages of a round in one direction.

    Args:
        parameters: Names of the network's parameters, which the formula of FedMac's paper counts.
        pruned: Whether models are pruned before they are sent, and so packed. If not, no number is read.

    Attributes:
        bits: Bits of the messages so far.
        paper: The same by the formula of FedMac's paper.
    """

    def __init__(self, parameters: Set[str], pruned: bool) -> None:
        self.parameters, self.pruned = parameters, pruned
        self.bits = self.paper = 0

    def add(self, models: Tree, links: Mapping[int, int]) -> None:
        """Count messages.

        Args:
            models: What is sent, ``[models, ...]`` each, under the network's names, with or without a prefix.
            links: Over how many links each model is sent, by row; models that are not sent may be missing.
        """
        if not self.pruned and links:  # all models are of one size
            links = {next(iter(links)): sum(links.values())}
        for row, times in links.items():
            model = {name: stack[row] for name, stack in models.items()}
            self.bits += times * 8 * nbytes(pack(model) if self.pruned else model)
            self.paper += times * model_bits(self._counted(model), self.pruned)

    def _counted(self, model: Tree) -> Tree:
        """The parameters of a model, without BatchNorm's statistics."""
        return {name: t for name, t in model.items() if {name, name.partition(".")[2]} & self.parameters}
