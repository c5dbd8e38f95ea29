import torch
from torch import Tensor, nn

from pfl_lightning.methods.families.paired import Paired, Side, SideBySide
from pfl_lightning.methods.fml import divergence
from pfl_lightning.tree import Tree


class FedKD(Paired):
    """Each client has a teacher of its own, and it and a small shared student learn from each other.

    Rule of a round; p, z and q, v are the predictions and features of a sample by f_i, the teacher of client i, and by
    g_i, its copy of the student; S is the mean over the mini-batch of both cross-entropies, a constant:

        loss of f_i = cross-entropy + (KL(q || p) + mean((z - W_i v)^2)) / S
        loss of g_i = cross-entropy + (KL(p || q) + mean((z - W_i v)^2)) / S
        f_i, g_i, W_i = SGD for epochs, all on the same mini-batches, from f_i, g, W_i
        keep f_i, W_i
        g = g - server_lr * (g - sum_i weight_i * g_i)

    What the other model predicts is a constant; the features of both move, and W_i, a matrix, with them. Clients are
    evaluated with f_i (``stored``). The paper sends the change of g_i in low rank, which is the step ``LowRank`` of the
    method's settings file.

    Paper: Wu, Wu, Lyu, Huang, Xie, Communication-Efficient Federated Learning via Knowledge Distillation, Nature
    Communications 2022, arXiv:2108.13323, eq. (1) to (9).

    Differs: the authors' server sends its change in low rank, too, which a client that has missed a round could not add
    up; here it sends g. In libraries S is no constant, weights are truncated and not changes, and each model also moves
    to please the other one.
    """

    private_head = "heads.private.head"

    def heads_of(self, private: Side, shared: Side) -> nn.Module:
        """Both heads, with W_i at the client's own."""
        bridged = Bridged(private.head, nn.Linear(shared.width, private.width, bias=False))
        return SideBySide(bridged, shared.head, (private.width, shared.width))

    def paired_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """Both losses, added up."""
        private, shared = outputs.chunk(2, 1)
        bridge = extras["heads.private.bridge.weight"]
        own, others = features.split([*bridge.shape], 1)
        apart = (own - others @ bridge.T).square().mean(1)
        losses = self.sample_losses(private, targets) + self.sample_losses(shared, targets)
        scale = (losses * extras["weights"]).sum().detach().clamp(min=torch.finfo(losses.dtype).eps)
        distilled = (divergence(shared, private) + divergence(private, shared) + apart) / scale
        total: Tensor = losses + extras["amounts"] * distilled
        return total


class Bridged(nn.Module):
    """A head, beside a matrix that only the loss uses.

    Args:
        head: The head.
        bridge: The matrix.
    """

    def __init__(self, head: nn.Module, bridge: nn.Linear) -> None:
        super().__init__()
        self.head = head
        self.bridge = bridge

    def forward(self, features: Tensor) -> Tensor:
        """Outputs of the head."""
        outputs: Tensor = self.head(features)
        return outputs
