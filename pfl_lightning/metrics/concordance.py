import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat


class ConcordanceIndex(Metric):
    """Share of the comparable pairs of samples that are in the right order: the one with the higher risk goes first.

    Two samples are comparable if an event of one of them came before the other one's time, or at that time if the other
    was censored then. Pairs of one risk count half; nan without a comparable pair.

    Paper: Harrell et al., "Evaluating the yield of medical tests", JAMA 1982.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    risks: list[Tensor]
    targets: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("risks", [], dist_reduce_fx="cat")
        self.add_state("targets", [], dist_reduce_fx="cat")

    def update(self, risks: Tensor, targets: Tensor) -> None:
        """Add samples.

        Args:
            risks: ``[samples]``.
            targets: Events and times, ``[samples, 2]``, see ``Survival``.
        """
        self.risks.append(risks)
        self.targets.append(targets)

    def compute(self) -> Tensor:
        """The share, ``[]``."""
        risks = dim_zero_cat(self.risks)
        events, times = dim_zero_cat(self.targets).unbind(1)
        later = (times[:, None] < times) | ((times[:, None] == times) & (events == 0))
        comparable = later & (events[:, None] == 1)
        order = torch.sign(risks[:, None] - risks)
        return (((order + 1) / 2) * comparable).sum() / comparable.sum()
