from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import Tensor

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, zeros_like

ABSENT = 1e-13  # stands for no samples: almost no share of the softmax, but float32 still has a bias of -30 to 1e-6


class FedRoD(Averaging):
    """Shared body and generic head, which clients train with a balanced loss, and a personal linear head on top.

    Rule of a round; z is the body's output, n_i has client i's samples of each class (a balanced softmax):

        body_i, G_i = SGD for epochs on cross-entropy(G_i(z) + log n_i), from body, G
        P_i         = SGD for personal_epochs on cross-entropy(G_i(z) + P_i(z)), from P_i
        keep P_i
        body, G     = body, G - server_lr * (body, G - sum_i weight_i * (body_i, G_i))

    P_i trains with body_i and G_i frozen. The heads are linear: G_i trains with log n_i in its bias, so that biases are
    never decayed, and G_i + P_i trains as one head. Clients are evaluated with body and G + P_i (``personal``), and
    with body and G (``global``).

    Paper: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022,
    arXiv:2107.00778, with linear personal heads.

    Differs: the paper updates P_i beside body_i and G_i in every mini-batch; we train it after them, so that z is
    computed once, with weight decay on G_i + P_i. It starts at zero: a new client's personal model is the global one.

    Args:
        personal_epochs: Epochs on the personal head per round.
        kwargs: Options of the bases.
    """

    needs = ("classes",)
    eval_models = ("personal", "global")
    fixed_local = MappingProxyType({"decay_biases": False})

    def __init__(self, personal_epochs: PositiveInt = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.personal_epochs = personal_epochs

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the network and the client states, once; see ``Method.build``.

        Raises:
            PflError: If the head is not one linear layer with a bias.
        """
        super().build(*args, **kwargs)
        self.bias = f"{self.network.linear_head(self.parts['head'], alone=True)}.bias"
        if self.bias not in self.parts["head"]:
            kind = self.network.kind
            raise PflError(f"model.network: {kind} is not possible with FedRoD; allowed: a linear last layer with bias")

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Personal heads of zeros (``personal.*``)."""
        heads = prefixed("personal", repeated(zeros_like(select(tensors, self.parts["head"])), num_clients))
        return {**super().initial_state(tensors, num_clients, seed), **heads}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train body and generic head with the shifted bias, then the personal head as a part of the sum of both."""
        bias = self.bias
        phase = self.phase("all")
        if (penalty := phase.penalty) is not None:  # it is for the bias without its shift
            phase = replace(phase, penalty=lambda w, extras: penalty({**w, bias: w[bias] - extras["shift"]}, extras))
        shift = log_counts(cohort, received.tree[bias])
        shifted = received.with_own({bias: received.tree[bias] + shift, "shift": shift})
        trained, losses = self.engine.train(cohort, shifted, phase, (*key, "all"))
        generic = trained.without({"shift"}).with_own({bias: trained.own[bias] - shift})
        head = self.phase("head", self.personal_epochs)
        personal, _ = self.engine.train(cohort, personalized(generic), head, (*key, "personal"))
        heads = {name: personal.own[name] - generic.own[name] for name in head.trainable}
        return generic.beside("personal", Params({}, heads)), losses

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The shared model with the personal heads, or the shared model itself."""
        return personalized(received) if model == "personal" else received


def log_counts(cohort: Examples, bias: Tensor) -> Tensor:
    """What is added to the logits: log n_i, ``[cohort, outputs]``; to a single one, that of class 1, the difference."""
    outputs = bias.shape[-1]  # one row, or in an asynchronous round one for each client
    logs = cohort.class_counts(max(outputs, 2)).to(bias.dtype).clamp(min=ABSENT).log()
    return logs if outputs > 1 else logs.diff()


def personalized(params: Params) -> Params:
    """The models with each client's personal head added to the generic one."""
    return params.with_own({name: params.tree[name] + head for name, head in params.under("personal").own.items()})
