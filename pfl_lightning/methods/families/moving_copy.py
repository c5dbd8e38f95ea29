from dataclasses import replace
from typing import Any

from torch import Tensor

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.client import Correlation, Examples, Follow, Proximity
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params

COPY = "copy"  # prefix of the clients' copies of the global model


class MovingCopy(Averaging):
    """What pFedMe and FedMac share: personal models are trained beside a copy of the global model, which follows them.

    Rule of a round; ``p`` is the penalty that ties the personal model theta_i to the copy w_i, of strength ``s``:

        theta_i = w_i = w
        repeat epochs times, for each batch (for R steps: epochs=R, epoch_steps=1):
            repeat inner_steps times: theta_i = theta_i - lr * gradient(f_i + p)(theta_i, w_i)
            w_i = w_i - copy_lr * s * (w_i - theta_i)
        w = w - server_lr * (w - sum_i weight_i * w_i)

    Since theta_i starts from w in every round, clients need not keep it: to be evaluated, every client trains a
    ``personal`` model from the current ``global`` one, whether or not it took part in the last round. That keeps the
    whole rates, as fine-tuning does, whatever ``lr_schedule`` has made of them.

    Args:
        inner_steps: Steps of the personal model on each mini-batch, K.
        kwargs: Options of the bases.

    Attributes:
        tie: The penalty that ties the personal model to the copy; its strength is s.
        copy_lr: Learning rate of the copy.
    """

    usual_weight_decay = 0.0
    eval_models = ("personal", "global")
    tie: Proximity | Correlation
    copy_lr: float

    def __init__(self, inner_steps: PositiveInt = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner_steps = inner_steps

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the personal models and move the copies; the copies are the upload, with the personal statistics."""
        return self._train(cohort, received, key, self.rate(1.0))

    def _train(self, cohort: Examples, received: Params, key: Key, factor: float) -> tuple[Params, Tensor]:
        """The same with a factor of both rates."""
        copies = received.select(self.engine.trainable)
        phase = self.phase("all", penalty=self.tie)
        phase = replace(
            phase,
            lr=factor * self.local_sgd.lr,
            trainable=phase.trainable | {f"{COPY}.{name}" for name in copies.tree},
            inner_steps=self.inner_steps,
            after_step=Follow(factor * self.copy_lr * self.tie.strength, COPY),
        )
        trained, losses = self.engine.train(cohort, received.beside(COPY, copies), phase, (*key, "all"))
        personal = trained.select(received.tree)
        uploads = Params(personal.shared, {**personal.own, **trained.under(COPY).own})
        return uploads.beside("personal", personal), losses

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """A personal model trained from the global one, or the global one itself."""
        return self._train(train, received, key, 1.0)[0].under("personal") if model == "personal" else received
