import torch
from torch import Tensor, nn

from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError
from pfl_lightning.methods.families.paired import Paired, Side
from pfl_lightning.methods.method import Method
from pfl_lightning.models import Network
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree


class FedMRL(Paired):
    """Each client has a model of its own, which also sees the features of a small shared model.

    Rule of a round; z_i are the K features of a sample by the client's own body, z those by the shared body, and d is
    the number of these; P_i is a matrix [K, d + K] of the client:

        r    = P_i [z ; z_i]
        loss = cross-entropy(head_i(r)) + cross-entropy(head(r_1, ..., r_d))
        SGD for epochs on all of these, from what the client has kept and received
        keep body_i, P_i, head_i
        body, head = theirs - server_lr * (theirs - sum_i weight_i * those of client i)

    Clients are evaluated with head_i(r) (``stored``).

    Paper: Yi, Yu, Ren, Wang, Liu, Li, Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024,
    arXiv:2406.00488, Algorithm 1.

    Differs: in HtFLlib P_i stays as it began in every round and test. The paper weights clients by samples, that
    library alike (``weighting: uniform``).
    """

    def heads_of(self, private: Side, shared: Side) -> nn.Module:
        """See ``Paired``.

        Raises:
            PflError: If the shared body has more features than the client's own.
        """
        if shared.width > private.width:
            raise PflError(
                f"model.shared_network must have at most the {private.width} features of {private.network.kind}, got "
                f"{shared.width}"
            )
        return NestedHeads(private, shared)

    def paired_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """Both losses, added up."""
        private, shared = outputs.chunk(2, 1)
        losses: Tensor = self.sample_losses(private, targets) + self.sample_losses(shared, targets)
        return losses

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The tensors of both networks."""
        return Method.eval_model(self, model, train, received, key)

    def eval_network(self, model: str, params: Params) -> Network:
        """Both networks."""
        return self.network


class NestedHeads(nn.Module):
    """Heads on features of both networks: a client's own one on all of them, the shared one on the first.

    In evaluation the client's own one answers.

    Args:
        private: The client's network.
        shared: The shared one.
    """

    def __init__(self, private: Side, shared: Side) -> None:
        super().__init__()
        projection = nn.Linear(shared.width + private.width, private.width, bias=False)
        self.private = nn.ModuleDict({"projection": projection, "head": private.head})
        self.shared = shared.head
        self.widths = [private.width, shared.width]

    def forward(self, features: Tensor) -> Tensor:
        """Outputs of both, ``[batch, private + shared]``; in evaluation the private ones."""
        private, shared = features.split(self.widths, 1)
        mixed = self.private["projection"](torch.cat([shared, private], 1))
        outputs: Tensor = self.private["head"](mixed)
        return torch.cat([outputs, self.shared(mixed[:, : self.widths[1]])], 1) if self.training else outputs
