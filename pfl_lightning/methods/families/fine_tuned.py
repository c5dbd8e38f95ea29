from dataclasses import replace
from typing import Any

from pfl_lightning.bounds import NonNegativeInt
from pfl_lightning.client import Examples, Phase
from pfl_lightning.methods.method import Method
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params

MOMENTUM = 0.5  # as in the code of SRPFL's authors


class FineTuned(Method):
    """Clients are also evaluated after a part of their models was trained further on their own samples (``finetuned``).

    Where a network has no head that trains, it is all that clients train. Nothing is left of that training. The
    learning rate is the first round's.

    Args:
        eval_epochs: Epochs of fine-tuning before a client is evaluated, on a copy that is then discarded; 0 for none.
            They are of ``local.optimizer``; SGD has momentum 0.5.
        kwargs: Options of the other bases.
    """

    finetunes: Part = "head"

    def __init__(self, *, eval_epochs: NonNegativeInt = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.eval_epochs = eval_epochs

    @property
    def eval_models(self) -> tuple[str, ...]:
        """The fine-tuned model is the first one if clients keep a part, and none if they keep a whole second model."""
        models = super().eval_models
        if self.personal or self.test_only or not self.eval_epochs or self.finetunes == "nothing":
            return models
        return (*models, "finetuned") if self.keeps == "nothing" else ("finetuned", *models)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The fine-tuned model, or one of the others."""
        if model == "finetuned":
            return self.engine.train(train, received, self.finetuning, key)[0]
        return super().eval_model(model, train, received, key)

    @property
    def finetuning(self) -> Phase:
        """The phase that fine-tunes a part before a client is evaluated."""
        part = self.finetuned_part
        phase = self.phase(part, self.eval_epochs)
        head_lr = self.head_lr if part == "head" else None
        return replace(phase, lr=head_lr or self.local_sgd.lr, momentum=MOMENTUM, steps=None)

    @property
    def finetuned_part(self) -> Part:
        """The part that is fine-tuned: all that clients train if the network has no such part."""
        return self.finetunes if self.parts[self.finetunes] else self.trains
