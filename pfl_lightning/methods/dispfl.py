from dataclasses import replace
from typing import Any, Literal

from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from torch import Tensor

from pfl_lightning.client import (
    Examples,
    Masked,
    Penalty,
    Phase,
    drop_ratio,
    erk_densities,
    moved_masks,
    random_masks,
    uniform_densities,
)
from pfl_lightning.data import Round
from pfl_lightning.methods.gossip import Gossip
from pfl_lightning.methods.sparsity import Share
from pfl_lightning.methods.traffic import Traffic
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key, random_bits
from pfl_lightning.tree import Params, Tree, prefixed, select

MASK = "mask"  # prefix of the clients' masks


class DisPFL(Gossip):
    """Every client trains a sparse model of its own, and mixes each weight with those neighbours that hold it, too.

    Rule of a round t; the mask m_i has a fixed number of ones in each tensor, and w_i is zero elsewhere::

        k   = ceil(a_t * number of ones in m_i), for each tensor, with a_t = drop / 2 * (1 + cos(pi * t / drop_rounds))
        m_i = m_i without the k smallest |w_i|, plus those k of the zeros with the largest |gradient(f_i)(w_i)|
        w_i = SGD for epochs on f_i, from m_i * w_i; after each step w_i = m_i * w_i
        w_i = m_i * (sum_j P_ij w_j) / (sum_j P_ij m_j)

    So the masks that count in a mix are those that clients have trained with, and they are evaluated with the same. A
    weight that is new begins at 0; one that is given up and taken again at once keeps its value. The first masks are
    random, those of new clients too. The network has for each weight the mean over the participants that hold it.
    Biases have masks, but statistics of BatchNorm have none. Clients send the weights that they hold and one bit for
    each weight that says so. With a ``density`` of 1 and a ``drop`` of 0 it is D-PSGD; ``mixing: uniform`` weighs
    neighbours as in the paper. From the round ``drop_rounds`` on masks stay as they are.

    Paper: Dai et al., DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse
    Training, ICML 2022, arXiv:2206.00187, Algorithms 1 and 2.
    Differs: the paper moves the masks after training instead of before it, as DePRL's experiments do
    (arXiv:2312.10815), and a weight that is new there begins with the mean of those neighbours that hold it. Its code
    takes the gradient of one mini-batch, we that of all training samples, without dropout and penalty.

    Args:
        density: Share of the weights that a client holds.
        layers: Densities of the tensors: ``erk`` makes small ones denser, ``uniform`` makes all equal.
        drop: Share of a client's weights that it gives up for others in the first round.
        drop_rounds: Rounds until it gives up none; usually those of the run. A run with more rounds has the same past.
        regrow: Entries to take instead: those with the largest ``gradient``, or ``random`` ones, as in the published
            scripts.
        kwargs: See ``Gossip``.
    """

    packs = True

    def __init__(
        self,
        density: Share = 0.5,
        layers: Literal["erk", "uniform"] = "erk",
        drop: ClosedUnitInterval = 0.5,
        drop_rounds: PositiveInt = 100,
        regrow: Literal["gradient", "random"] = "gradient",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.density, self.layers = density, layers
        self.drop, self.drop_rounds, self.regrow = drop, drop_rounds, regrow

    def at_first(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A random mask for each client (``mask.*``), and the server's model under this mask."""
        parameters = select(tensors, self.engine.trainable)
        densities_of = erk_densities if self.layers == "erk" else uniform_densities
        densities = densities_of({name: tensor.shape for name, tensor in parameters.items()}, self.density)
        masks: Tree = {}
        for name, tensor in parameters.items():
            masks[name] = random_masks((seed, MASK, name), num_clients, tensor, densities[name])
        return masked(super().at_first(tensors, num_clients, seed), masks)

    def local(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Move the masks, then train under them."""
        if ratio := drop_ratio(self.drop, self.clock.rounds, self.drop_rounds):
            scores, masks = self._scores(cohort, received, key), received.under(MASK).own
            moved = {name: moved_masks(received.own[name], masks[name], scores[name], ratio) for name in masks}
            received = Params(received.shared, masked(received.own, moved))
        return super().local(cohort, received, key)

    def _scores(self, cohort: Examples, received: Params, key: Key) -> Tree:
        """What speaks for a weight that a client may take, ``[cohort, ...]``."""
        if self.regrow == "gradient":
            gradients = self.engine.gradient(cohort, received, self.engine.trainable)
            return {name: gradient.abs_() for name, gradient in gradients.items()}
        weights = select(received.own, self.engine.trainable)
        return {n: random_bits((*key, MASK, n), cohort.ids, w[0].numel()).view_as(w) for n, w in weights.items()}

    def phase(self, part: Part, epochs: int, lr: float | None = None, penalty: Penalty | None = None) -> Phase:
        """See ``Method.phase``; all training is under the masks, refitting too."""
        return replace(super().phase(part, epochs, lr, penalty), after_step=Masked(MASK))

    def mix_clients(self, matrix: Tensor, rows: Tensor | None) -> None:
        """Mix each weight among those that hold it."""
        weights = self.mixed & self.engine.trainable
        self.clients.mix_held(matrix, weights, MASK, rows)
        self.clients.mix(matrix, self.mixed - weights, ids=rows)

    def mean_model(self, rows: Tensor | None) -> Tree:
        """For each weight the mean over those that hold it; 0 if nobody does."""
        mean = super().mean_model(rows)
        shares = self.clients.mean((f"{MASK}.{name}" for name in self.engine.trainable), rows)
        for name in self.engine.trainable:
            share = shares[f"{MASK}.{name}"]
            mean[name] /= share.where(share > 0, 1)
        return mean

    def messages(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant sends what it holds to its neighbours; the models of all clients have one size."""
        model = {name: stack[:1] for name, stack in self.clients.stacks(sorted(self.mixed)).items()}
        for name in model.keys() & self.engine.trainable:  # ones are sent even where a weight happens to be 0
            model[name] = self.clients.get_buffer(f"{MASK}.{name}")[:1].to(model[name])
        up.add(model, {0: int(self.links(batch).degrees.sum())})


def masked(models: Tree, masks: Tree) -> Tree:
    """Some models under masks, with these masks, ``[models, ...]`` each."""
    beside = prefixed(MASK, masks)
    return {**models, **Masked(MASK)(select(models, masks), beside), **beside}
