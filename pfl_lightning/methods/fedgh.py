from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.prototypes import ClassMeans
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree


class FedGH(ClassMeans):
    """Clients keep their bodies, and the server trains one head for all on their mean features of each class.

    Rule of a round; P_ic are the mean features of client i's samples of class c by its trained body:

        body_i, head_i = SGD for epochs on f_i, from body_i, head
        keep body_i, upload P_ic
        head = SGD for server_epochs on cross-entropy(head(P_ic), c) over all uploaded P_ic

    The server draws mini-batches at random. Nobody uploads a head. Clients are evaluated with their own bodies and the
    server's head (``stored``).

    Paper: Yi, Wang, Liu, Shi, Yu, FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM
    Multimedia 2023, arXiv:2303.13137, Algorithm 1.

    Differs: in the authors' code the optimizer of the last client steps in place of the server's, so that their head
    never moves.

    Args:
        server_epochs: Epochs over the uploads; with 0 the head stays as it was at first.
        kwargs: Options of the bases.
    """

    keeps: Part = "body"

    def __init__(self, server_epochs: NonNegativeInt = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.server_epochs = server_epochs

    @property
    def head_path(self) -> str:
        """Path of the linear layer that is the head."""
        return self.network.linear_head(self.parts["head"], alone=True)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train body and head, and compute mean features; the head is not uploaded."""
        trained, losses = super().local_update(cohort, received, key)
        return self.with_means(cohort, trained).without(self.parts["head"]), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Train the head."""
        features, classes = self.uploaded(batch)
        head = self.network.get_submodule(self.head_path)

        def loss_of(places: Tensor) -> Tensor:
            return self.sample_losses(head(features[places]), classes[places]).mean()

        self.server_steps(batch, head.parameters(), len(classes), self.server_epochs, loss_of)
