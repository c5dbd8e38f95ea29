from typing import Any

from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval
from pfl_lightning.methods.families.paired import Paired
from pfl_lightning.tasks.classification import log_probabilities
from pfl_lightning.tree import Tree


class FML(Paired):
    """Each client has a model of its own, and it and a small shared model teach each other.

    Rule of a round; p and q are the predictions of f_i, the model of client i, and of g_i, its copy of the shared one:

        loss of f_i = private_share * cross-entropy + (1 - private_share) * KL(q || p)
        loss of g_i = shared_share * cross-entropy + (1 - shared_share) * KL(p || q)
        f_i, g_i = SGD for epochs, both on the same mini-batches, from f_i, g
        keep f_i
        g = g - server_lr * (g - sum_i weight_i * g_i)

    What the other model predicts is a constant. Clients are evaluated with f_i (``stored``). With ``private_share`` 1
    it is Local's model, and with ``shared_share`` 1 g is FedAvg's.

    Paper: Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu, Federated Mutual Learning, 2020, arXiv:2006.16765,
    Algorithm 1, which weights clients alike (``weighting: uniform``).

    Differs: in libraries each model also moves to please the other one, and KL is divided by the number of classes.

    Args:
        private_share: How much labels count for f_i, the paper's alpha.
        shared_share: How much labels count for g_i, the paper's beta.
        kwargs: Options of the bases.
    """

    def __init__(
        self, private_share: ClosedUnitInterval = 0.5, shared_share: ClosedUnitInterval = 0.5, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.private_share = private_share
        self.shared_share = shared_share

    def paired_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """Both losses, added up."""
        private, shared = outputs.chunk(2, 1)
        losses = self.private_share * self.sample_losses(private, targets)
        losses = losses + self.shared_share * self.sample_losses(shared, targets)
        term = (1 - self.private_share) * divergence(shared, private)
        term = term + (1 - self.shared_share) * divergence(private, shared)
        mixed: Tensor = losses + extras["amounts"] * term
        return mixed


def divergence(teacher: Tensor, pupil: Tensor) -> Tensor:
    """KL(teacher || pupil) of the predictions for each sample, ``[batch]``; the teacher's are constants.

    Args:
        teacher: Outputs, ``[batch, outputs]``.
        pupil: Outputs, ``[batch, outputs]``.
    """
    aims = log_probabilities(teacher.detach())
    return (aims.exp() * (aims - log_probabilities(pupil))).sum(1)
