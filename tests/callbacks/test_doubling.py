from functools import partial

import pytest

from pfl_lightning.callbacks import StageDoubling
from pfl_lightning.callbacks.doubling import Doubling
from pfl_lightning.data import Digits
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP


def test_the_name_says_what_it_is():
    with pytest.raises(TypeError, match="Growing: the name of a subclass of Doubling must end in Doubling"):

        class Growing(Doubling):
            pass


class EveryRoundDoubling(Doubling):
    """A rule of the user's own."""

    def begin(self, trainer, method):
        self.stage = trainer.global_step

    def after_round(self, trainer, method, batch):
        self.stage = trainer.global_step


def test_a_rule_only_says_when_a_stage_ends(fit):
    sizes = []

    class Method(FedAvg):
        def choose(self, batch):
            sizes.append(len(batch.examples))
            return super().choose(batch)

    fit(Method(network=partial(MLP, hidden=(4,))), Digits(num_clients=10), 5, callbacks=[EveryRoundDoubling(n0=1)])
    assert sizes == [1, 2, 4, 8, 10]


def test_two_rules_at_once_are_refused(fit):
    callbacks = [EveryRoundDoubling(n0=1), StageDoubling(n0=1)]
    with pytest.raises(
        PflError, match="callbacks: EveryRoundDoubling with StageDoubling is not possible; allowed: one"
    ):
        fit(FedAvg(network=partial(MLP, hidden=(4,))), Digits(num_clients=10), 1, callbacks=callbacks)
