import lightning.pytorch as pl
import pytest
from fakes.methods import distance, small
from fakes.participants import CountParticipants

from pfl_lightning.callbacks import GradientDoubling, StageDoubling
from pfl_lightning.callbacks.doubling import Doubling
from pfl_lightning.data import Digits
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedRep, LGFedAvg
from pfl_lightning.system import FixedExponential, Participation, UniformTime


class EveryRoundDoubling(Doubling):
    """A rule of the user's own."""

    def begin(self, trainer, method):
        self.stage = trainer.global_step

    def after_round(self, trainer, method, batch):
        self.stage = trainer.global_step


def test_a_rule_only_says_when_a_stage_ends(fit):
    rounds = CountParticipants()
    fit(small(), Digits(num_clients=10), 5, callbacks=[EveryRoundDoubling(n0=1), rounds])
    assert rounds.sizes == [1, 2, 4, 8, 10]


class Failing(pl.Callback):
    """Fails in the first round."""

    def on_train_batch_end(self, *_):
        raise PflError("no luck")


def test_the_data_of_a_run_that_failed_have_the_whole_pool(fit):
    data = Digits(num_clients=5)
    with pytest.raises(PflError, match="no luck"):
        fit(small(), data, 2, callbacks=[EveryRoundDoubling(n0=1), Failing()], bare=True)
    assert data.participation.cohort_size is None


def test_another_run_on_the_same_data_has_the_whole_pool(fit):
    rounds = CountParticipants()
    data = Digits(num_clients=10)
    for callbacks in ([EveryRoundDoubling(n0=1)], [rounds]):
        fit(small(), data, 2, callbacks=callbacks, bare=True)
    assert rounds.sizes == [10, 10]


@pytest.mark.parametrize(
    ("rule", "unit", "sizes"),
    # six clients with 1, 4, 9, 16, 25 and 36 samples, 91 / 6 at a mean client, the smallest ones first: 1, 5, 14, 30,
    # 55 and 91 together. One mean client's samples are reached by four clients, those of two by five, of four by six.
    [
        (StageDoubling, {}, [1, 2, 4, 6]),
        (StageDoubling, {"double_by": "samples"}, [4, 5, 6, 6]),
        (GradientDoubling, {"double_by": "samples"}, [4, 5, 6, 6]),
    ],
)
def test_a_stage_has_so_many_clients_or_so_many_mean_clients_samples(rule, unit, sizes, ragged_data, fit):
    rounds = CountParticipants()
    data = ragged_data(val_fraction=0.0, speeds=UniformTime())
    doubling = rule(n0=1, rounds_per_stage=1, **unit)
    fit(small(eval_epochs=0), data, 4, callbacks=[doubling, rounds])
    assert rounds.sizes == sizes


@pytest.mark.parametrize("method", [FedRep, LGFedAvg])
@pytest.mark.parametrize("pool_size", [None, 4])
def test_with_everyone_in_the_first_stage_it_is_the_base_method_and_says_so(method, pool_size, ragged_data, train):
    def trained(*callbacks):
        data = ragged_data(participation=Participation(pool_size), speeds=FixedExponential())
        return train(method, 3, data, callbacks)

    base, pool = trained(), pool_size or 6
    with pytest.warns(UserWarning, match=f"doubles nothing, since all {pool} .*; set n0 below {pool}, got {pool}$"):
        doubled = trained(StageDoubling(n0=pool, rounds_per_stage=1))
    assert distance(base.network, doubled.network) == 0
    assert base.accounting.clock.compute == doubled.accounting.clock.compute > 0


def test_two_rules_at_once_are_refused(fit):
    callbacks = [EveryRoundDoubling(n0=1), StageDoubling(n0=1)]
    with pytest.raises(
        PflError, match=r"^trainer\.callbacks: EveryRoundDoubling and StageDoubling exclude each other; use one"
    ):
        fit(small(), Digits(num_clients=10), 1, callbacks=callbacks)
