from dataclasses import replace

from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.methods.families.averaging import Aggregated
from pfl_lightning.methods.families.prototypes import Prototypes
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params


class FedProto(Prototypes, Aggregated):
    """Clients keep their models and share prototypes alone: the mean features of each class.

    Rule of a round; z are the features of a sample of class y, and p_y is the global prototype of the class:

        loss = cross-entropy + strength * mean((z - p_y)^2)    # the term once p_y is known
        w_i  = SGD for epochs on the mean of this loss over the samples of client i, from w_i
        p_y  = mean of the clients' features of class y, over all samples of the participants

    Clients are evaluated with their own models (``stored``). With ``strength`` 0 it is Local. No model is sent, and so
    none is pruned.

    Paper: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, arXiv:2105.00243,
    Algorithm 1.

    Differs: the term is the squared distance of each sample's features to the prototype, as in the authors' code, and
    not that of their mean; its mean over features has the same scale in any network. A prototype is the mean over
    samples by the trained models, where that code takes the mean over clients of what an epoch of training met. A class
    that no participant has keeps its prototype, which that code forgets. Outputs decide about classes, and not the
    nearest prototype.
    """

    keeps: Part = "all"
    eval_models = ("stored",)
    prunes = False

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train near the prototypes, and compute the sums of the client's own."""
        phase = self.phase("all")
        if self.strength:
            phase = replace(phase, feature_loss=self.losses_near_prototypes)
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        return self.with_prototypes(cohort, trained), losses
