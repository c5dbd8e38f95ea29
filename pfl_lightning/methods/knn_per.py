from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.client import Examples, join_outputs
from pfl_lightning.client.layers import layers_without_vmap, part
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import Network
from pfl_lightning.seeding import Key
from pfl_lightning.tasks import as_outputs, log_probabilities
from pfl_lightning.tree import Params

VOTE = "vote"  # the layer that takes the head's place
BY_PRODUCTS = "use_mm_for_euclid_dist"  # of torch's ways the one that is fast and that every format of export has


class KNNPer(Averaging):
    """FedAvg whose model votes with the nearest of a client's own samples, when the client is evaluated.

    Rule; d are the distances of a sample's features to those of the client's training samples, by the global model:

        w = one round of FedAvg
        N = the neighbours samples with the least d
        p = vote_weight * sum_{s in N} softmax(-d)_s * [y_s = y] + (1 - vote_weight) * p_w(y)

    Clients are evaluated with p (``neighbours``), and with the global model itself (``global``), which p is with
    ``vote_weight`` 0. A client's model holds the features of all its training samples.

    Paper: Marfoq, Neglia, Kameni, Vidal, Personalized Federated Learning through Local Memorization, ICML 2022,
    arXiv:2111.09360.

    Differs: the paper tunes the weight of the vote for each client on validation samples; here it is the same for all.
    Neighbours are exact, and features are the inputs of the network's head. The softmax is the paper's
    exp(-d) with Euclidean distances; its authors' code has exp(-d^2 / the number of features).

    Args:
        neighbours: How many samples vote, the paper's k; all, of a client that has fewer.
        vote_weight: Weight of their vote, the paper's lambda.
        kwargs: Options of the bases.
    """

    display_name = "kNN-Per"
    needs = ("classes", "features")
    eval_models = ("neighbours", "global")

    def __init__(self, neighbours: PositiveInt = 10, vote_weight: ClosedUnitInterval = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.neighbours = neighbours
        self.vote_weight = vote_weight

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The global model, for neighbours with the features and classes of the client's samples (``vote.*``)."""
        if model == "global":
            return received
        features = join_outputs(self.engine.features(train, received), len(train))
        classes = F.one_hot(train.targets(train.positions), self.task.classes) * train.present[..., None]
        samples = {f"{VOTE}.features": features.flatten(2), f"{VOTE}.classes": classes.to(features)}
        return received.beside(f"{VOTE}.head", received.select(self.parts["head"])).with_own(samples)

    def eval_network(self, model: str, params: Params) -> Network:
        """The network, for neighbours with the vote in the place of the head."""
        if model == "global":
            return self.network
        layers = self.engine.body_layers()
        samples = params.under(VOTE).client(0)
        head = part(self.network, layers)
        vote = Vote(head, samples["features"], samples["classes"], self.neighbours, self.vote_weight)
        return Network({**dict(part(self.network, 0, layers).named_children()), VOTE: vote})


class Vote(nn.Module):
    """A head whose probabilities are mixed with a vote of the samples with the nearest features.

    Args:
        head: The head.
        features: Features of the samples, ``[samples, features]``.
        classes: 1 for the class of each sample, ``[samples, classes]``; a row of zeros stands for no sample.
        neighbours: How many samples vote.
        weight: Weight of their vote.
    """

    features: Tensor
    classes: Tensor

    def __init__(self, head: nn.Sequential, features: Tensor, classes: Tensor, neighbours: int, weight: float) -> None:
        super().__init__()
        self.head = head
        self.neighbours = min(neighbours, len(features))
        self.without_vmap = bool(layers_without_vmap(head))
        self.logs = torch.tensor([weight, 1 - weight]).double().log().tolist()
        self.register_buffer("features", features)
        self.register_buffer("classes", classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Log-probabilities of the mix (of a single output the logit), ``[batch, outputs]``."""
        absent = self.classes.sum(1) == 0
        distances = torch.cdist(inputs.flatten(1), self.features, compute_mode=BY_PRODUCTS).masked_fill(absent, inf)
        nearest, places = distances.topk(self.neighbours, largest=False)
        shares = torch.zeros_like(distances).scatter(1, places, (-nearest).softmax(1))
        votes = (shares @ self.classes).clamp(min=torch.finfo(shares.dtype).tiny)
        outputs = self.head(inputs)
        logs = torch.logaddexp(votes.log() + self.logs[0], log_probabilities(outputs) + self.logs[1])
        return as_outputs(logs, outputs.shape[-1])
