from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.client import Examples, join_outputs
from pfl_lightning.methods.families.several_models import WEIGHTS, SeveralModels, uploaded
from pfl_lightning.models import Network
from pfl_lightning.seeding import Key
from pfl_lightning.tasks import as_outputs, log_probabilities
from pfl_lightning.tree import Params, Tree, prefixed, select

SHARE = "share"  # of a model in each sample


class FedEM(SeveralModels):
    """Several models for all clients, each of which mixes their probabilities with weights of its own.

    Rule of a round; w_k are the models, l_k(s) is the loss of model k on sample s, and pi_i are client i's weights:

        q_k(s) = pi_ik * e^(-l_k(s)) / sum_j pi_ij * e^(-l_j(s))    # E-step, for each sample
        pi_ik  = mean_s q_k(s)                                      # M-step
        w_ik   = SGD for epochs on the mean over s of q_k(s) * l_k(s), from w_k, for each k
        w_k    = sum_i weight_i * w_ik

    Clients are evaluated with the mix of the models' probabilities (``mixture``). A client keeps its weights, which
    begin equal; the server uses their mean only to choose a body. With one model it is FedAvg. The network is the first
    model. Models are not pruned.

    Paper: Marfoq, Neglia, Bellet, Kameni, Vidal, Federated Multi-Task Learning under a Mixture of Distributions,
    NeurIPS 2021, arXiv:2108.10252, Algorithm 1.

    Differs: before a client is evaluated, its weights take one more E-step and M-step on its training samples, with the
    current models. The models begin with the same body, which can be pretrained, and with a random head each. Means are
    weighted by ``weighting``. New clients that train a new head do so on the body of the model that had the most weight
    in the last round.

    Args:
        models: Number of models, the paper's M.
        kwargs: Options of the bases.
    """

    needs = ("classes", "rounds")
    eval_models = ("mixture",)

    def __init__(self, models: PositiveInt = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = models

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Equal weights of the models, ``[clients, models]``."""
        equal = next(self.network.parameters()).new_full((num_clients, self.number), 1 / self.number)
        return {**super().initial_state(tensors, num_clients, seed), WEIGHTS: equal}

    def shares(self, cohort: Examples, received: Params) -> tuple[Tensor, Tensor]:
        """The q of each sample, ``[cohort, samples, models]``, and their means, ``[cohort, models]``."""
        losses = torch.stack([self.losses(cohort, model) for model in self.models(received)], -1)
        shares = (received.own[WEIGHTS].log()[:, None] - losses).softmax(-1) * cohort.present[..., None]
        return shares, shares.sum(1) / cohort.device_counts[:, None]

    def losses(self, cohort: Examples, model: Params) -> Tensor:
        """The loss of each sample, ``[cohort, samples]``."""
        predictions = self.engine.predictions(cohort, model)
        losses = (part._replace(outputs=self.engine.loss(part.outputs, part.targets)) for part in predictions)
        return join_outputs(losses, len(cohort))

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Compute the shares and weights, and train every model on its share of the samples."""
        shares, weights = self.shares(cohort, received)
        phase = replace(self.phase("all"), sample_weights=SHARE)
        uploads = {WEIGHTS: weights}
        total = torch.zeros_like(weights[:, 0])
        for number, model in enumerate(self.models(received)):
            start = model.with_own({SHARE: shares[..., number]})
            trained, losses = self.engine.train(cohort, start, phase, (*key, "all"))
            uploads |= uploaded(number, select(trained.own, self.shared))
            total += losses
        return received.with_own(uploads), total

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """All models (``models.0.*`` and so on), and the client's weights."""
        shared = dict(received.shared)
        for number, params in enumerate(self.models(received)):
            shared |= prefixed(f"models.{number}", params.shared)
        return Params(shared, {"mixture.weights": self.shares(train, received)[1]})

    def eval_network(self, model: str, params: Params) -> Network:
        """The mixture."""
        copies = [deepcopy(self.network) for _ in range(self.number)]
        return Network({"models": Models(copies), "mixture": Mixture(params.own["mixture.weights"][0])})


class Models(nn.ModuleList):
    """Several networks for the same inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Their outputs, ``[batch, networks, outputs]``."""
        return torch.stack([network(inputs) for network in self], 1)


class Mixture(nn.Module):
    """Mixes the probabilities of several networks.

    Args:
        weights: Their weights, ``[networks]``.
    """

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, outputs: Tensor) -> Tensor:
        """Log-probabilities of the mix (of a single output the logit), ``[batch, outputs]``."""
        logs = log_probabilities(outputs) + self.weights.log()[:, None]
        return as_outputs(logs.logsumexp(1), outputs.shape[-1])
