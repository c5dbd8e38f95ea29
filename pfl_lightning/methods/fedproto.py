from typing import Any, Literal

from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.methods.families.averaging import Aggregated
from pfl_lightning.methods.families.prototypes import Prototypes, near_prototypes, nearest_prototype
from pfl_lightning.models import Network, Part
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

    ``predict: nearest`` gives a sample the class whose prototype is nearest to its features, as the authors do; until
    there are prototypes, outputs decide.

    Differs: the term is the squared distance of each sample's features to the prototype, as in the authors' code, and
    not that of their mean; its mean over features has the same scale in any network. A prototype is the mean over
    samples by the trained models, where that code takes the mean over clients of what an epoch of training met. A class
    that no participant has keeps its prototype, which that code forgets. By default outputs decide about classes, and
    not the nearest prototype, which is chosen among those of all classes, where the authors take the client's.

    Args:
        predict: What decides about the class of a sample.
        kwargs: Options of the bases.
    """

    keeps: Part = "all"
    eval_models = ("stored",)
    prunes = False

    def __init__(self, predict: Literal["head", "nearest"] = "head", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.predict = predict

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train near the prototypes, and compute the sums of the client's own."""
        phase = near_prototypes(self, self.strength, self.phase("all"))
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        return self.with_prototypes(cohort, trained), losses

    def eval_network(self, model: str, params: Params) -> Network:
        """The network, or its body before the nearest prototype."""
        return self.network if self.predict == "head" else nearest_prototype(self)
