from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt, Share
from pfl_lightning.client import Examples, Masked, Phase, sparse_training
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.families.gossip import Gossip
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, select

MASK = "mask"  # prefix of the clients' masks


class DisPFL(Gossip):
    """Every client trains a sparse model of its own, and mixes each weight with those neighbours that hold it, too.

    Rule of round t; the mask m_i has a fixed number of ones in each tensor, and w_i is zero elsewhere:

        a_t = drop / 2 * (1 + cos(pi * t / drop_rounds)), at last 0
        k = ceil(a_t * ones of m_i), for each tensor
        m_i = m_i without its k smallest |w_i|,
              plus k of its zeros with the largest |gradient(f_i)(w_i)|
        w_i = SGD for epochs on f_i, from m_i * w_i, and after each step w_i = m_i * w_i
        w_i = m_i * (sum_j P_ij w_j) / (sum_j P_ij m_j)

    So clients mix, and are evaluated, with the masks that they trained with. The first are random. A new weight begins
    at 0; one that is given up and taken again at once stays. Biases have masks, statistics of BatchNorm have none. With
    ``density`` 1 and ``drop`` 0 it is D-PSGD; ``mixing: uniform`` is the paper's.

    Paper: Dai et al., DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse
    Training, ICML 2022, arXiv:2206.00187, Algorithms 1 and 2.

    Differs: the paper moves masks after training, by the gradient of one mini-batch, and new weights begin with the
    neighbours' mean; we move them before it, by that of an epoch's number of samples, as DePRL's code does.

    Args:
        density: Share of the weights that a client holds.
        layers: How dense tensors are: ``erk`` makes small ones denser (Erdos-Renyi kernel), ``uniform`` all equally.
        drop: Share of its weights that a client gives up for others in the first round.
        drop_rounds: Rounds after which masks stay as they are; usually those of the run.
        regrow: The weights to take: by ``gradient``, or ``random`` ones as in the authors' scripts.
        kwargs: Options of the bases.
    """

    packs = True

    def __init__(
        self,
        density: Share = 0.5,
        layers: sparse_training.Layers = "erk",
        drop: ClosedUnitInterval = 0.5,
        drop_rounds: PositiveInt = 100,
        regrow: Literal["gradient", "random"] = "gradient",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.density = density
        self.layers = layers
        self.drop = drop
        self.drop_rounds = drop_rounds
        self.regrow = regrow

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A mask for each client (``mask.*``), and the server's model under it."""
        weights = select(tensors, self.engine.trainable)
        masks = sparse_training.first_masks((seed, MASK), num_clients, weights, self.density, self.layers)
        return Masked(MASK).onto(super().initial_state(tensors, num_clients, seed), masks)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Move the masks, then train."""
        if ratio := sparse_training.drop_ratio(self.drop, self.accounting.clock.rounds, self.drop_rounds):
            masks = received.under(MASK).own
            if self.regrow == "gradient":
                seen = cohort.sample((*key, MASK), self.phase("all", 1).visited(cohort.longest))
                scores = self.engine.gradient(seen, received, masks)
            else:
                scores = sparse_training.random_scores((*key, MASK), cohort.ids, masks)
            masks = sparse_training.moved_masks(received.own, masks, scores, ratio)
            received = Params({}, Masked(MASK).onto(received.own, masks))
        return super().local_update(cohort, received, key)

    def phase(self, part: Part, *args: Any, **kwargs: Any) -> Phase:
        """See ``Method.phase``; all training is under the masks, fine-tuning too."""
        return replace(super().phase(part, *args, **kwargs), after_step=Masked(MASK))

    def mix_clients(self, matrix: Tensor, ids: Tensor | None) -> None:
        """Mix each weight among those that hold it."""
        weights = self.mixed & self.engine.trainable
        self.clients.mix(matrix, weights, ids=ids, masks=MASK)
        self.clients.mix(matrix, self.mixed - weights, ids=ids)

    def mean_model(self, ids: Tensor | None) -> Tree:
        """The mean of each weight over those that hold it; 0 if nobody does."""
        weights = self.engine.trainable
        mean = self.clients.mean(self.parts["all"] | {f"{MASK}.{name}" for name in weights}, ids)
        for name in weights:
            share = mean.pop(f"{MASK}.{name}")
            mean[name] /= share.where(share > 0, 1)
        return mean

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant sends what it holds to its neighbours; all clients' models have the same size."""
        sent = self.clients.first(self.mixed)
        for name in self.mixed & self.engine.trainable:  # masks instead of weights, for a weight that is held may be 0
            (mask,) = self.clients.first([f"{MASK}.{name}"]).values()
            sent[name] = mask.to(sent[name])
        up.add(sent, self.mixing_matrix(batch, awaited=True).links(batch.examples.host_ids))
