from torch import Tensor
from torch.nn import functional as F


def sample_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each sample: logits ``[clients, batch, classes]`` and labels, to ``[clients, batch]``."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
