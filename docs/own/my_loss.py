"""A loss of one's own: the focal loss (Lin et al., Focal Loss for Dense Object Detection, ICCV 2017)."""

from torch import Tensor, nn
from torch.nn import functional as F


class FocalLoss(nn.Module):
    """Cross-entropy that counts samples less the surer the network is of their class.

    Args:
        gamma: How much less; 0 is cross-entropy.
    """

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each sample, ``[batch]``, from outputs ``[batch, classes]`` and labels ``[batch]``."""
        losses = F.cross_entropy(outputs, targets, reduction="none")
        return (1 - losses.neg().exp()) ** self.gamma * losses
