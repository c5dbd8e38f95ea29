from dataclasses import replace
from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Aggregated
from pfl_lightning.methods.families.prototypes import ClassSums, sums_by_class
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tasks.classification import log_probabilities
from pfl_lightning.tree import Params, Tree, repeated

# of the participants of the last round: mean predictions by class, which classes they have, and the number of the round
PREDICTIONS = "predictions"
PRESENT = "present"
ROUND = "round"
OWN = "own"  # prefix of the same of a client, in the last round that it took part in
HINT = "hint"
KNOWN = "known"


class FedDistill(Aggregated):
    """Clients keep their models, and share what these predict on average for the samples of each class.

    Rule of a round; F_ic are the mean predictions of client i for its samples of class c, after training, and M_c is
    the number of participants of the last round that have class c:

        hint_ic = (sum_j F_jc - F_ic) / (M_c - 1)    # over these participants
        loss    = cross-entropy + strength * cross-entropy with the target hint_iy
        w_i     = SGD for epochs on the mean of this loss over the samples of client i, from w_i
        upload F_ic

    F_ic is taken away, and M_c is less by one, only if i was one of these. Samples of a class without a hint have the
    first term alone.

    Clients are evaluated with their own models (``stored``). With ``strength`` 0 it is Local. It is also called FD.

    Paper: Jeong, Oh, Kim, Park, Bennis, Kim, Communication-Efficient On-Device Machine Learning: Federated Distillation
    and Augmentation under Non-IID Private Data, 2018, arXiv:1811.11479.

    Differs: the paper averages predictions of the samples as they come while the model moves; here the trained model
    predicts all of them. Libraries send outputs before the softmax, which is another loss.

    Args:
        strength: Weight of the term, the paper's gamma.
        kwargs: Options of the bases.
    """

    keeps: Part = "all"
    eval_models = ("stored",)
    uploads = (PREDICTIONS, PRESENT)
    weighting = "uniform"
    needs = ("classes", "features", "rounds")
    prunes = False

    def __init__(self, strength: NonNegativeFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strength = strength

    def server_state(self, tensors: Tree) -> Tree:
        """No predictions yet, ``[classes, classes]``, of no client, ``[classes]``, in round 0."""
        zeros = next(iter(tensors.values())).new_zeros(self.task.classes, self.task.classes)
        return {PREDICTIONS: zeros, PRESENT: zeros[0], ROUND: zeros[0, 0]}

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The same of each client, before its first round."""
        own = {f"{OWN}.{name}": tensor for name, tensor in self.server_state(tensors).items()}
        return {**super().initial_state(tensors, num_clients, seed), **repeated(own, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train towards the predictions of others, and predict."""
        phase = self.phase("all")
        if self.strength:
            phase = replace(phase, feature_loss=self.distilling_losses)
        start = received.with_own(self.hints(received))
        trained, losses = self.engine.train(cohort, start, phase, (*key, "all"))
        sums = self.predicted(cohort, trained)
        number = (received.tree[f"server.{ROUND}"] + 1).expand(len(cohort))
        uploads = {PREDICTIONS: sums.means, PRESENT: sums.present}
        own = {f"{OWN}.{name}": rows for name, rows in {**uploads, ROUND: number}.items()}
        return trained.with_own({**uploads, **own}), losses

    def hints(self, received: Params) -> Tree:
        """What clients learn from the others, ``[cohort, classes, classes]``, and of which classes that is known."""
        total, count, number = (received.tree[f"server.{name}"] for name in (PREDICTIONS, PRESENT, ROUND))
        predictions, present, own_number = (received.own[f"{OWN}.{name}"] for name in (PREDICTIONS, PRESENT, ROUND))
        took_part = ((own_number == number) & (number > 0)).to(total)
        others = (count - took_part[:, None] * present).round()
        sums = total - took_part[:, None, None] * predictions
        return {HINT: sums / others.clamp(min=1)[..., None], KNOWN: (others > 0).to(total)}

    def distilling_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        distances = -(extras[HINT][targets] * log_probabilities(outputs)).sum(1)
        term = extras["amounts"] * self.strength * extras[KNOWN][targets] * distances
        losses: Tensor = self.sample_losses(outputs, targets) + term
        return losses

    def predicted(self, cohort: Examples, trained: Params) -> ClassSums:
        """Sums over each client's samples of what its model predicts for them; their means are F_i."""
        zeros = self.server.tree[PREDICTIONS].new_zeros(len(cohort), self.task.classes, self.task.classes)
        parts = self.engine.predictions(cohort, trained.select(self.parts["all"]))
        return sums_by_class((part._replace(outputs=log_probabilities(part.outputs).exp()) for part in parts), zeros)

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Note the sums over the participants."""
        state = self.server.tree
        for name in (PREDICTIONS, PRESENT):
            state[name].copy_(mean[name] * len(batch.examples))
        state[ROUND] += 1
