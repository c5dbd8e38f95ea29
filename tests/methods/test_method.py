"""The seams of the base, each proved by a method of a few lines."""

import warnings
from functools import partial

import pytest
import torch
from fakes.methods import built, distance, normed, stepping
from torch.optim import SGD

from pfl_lightning import load_method, methods
from pfl_lightning.client import LocalTraining, largest_first
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DPSGD, IFCA, FedAvg, FedRep, Method, Sparsity
from pfl_lightning.models import MLP
from pfl_lightning.seeding import seed_of
from pfl_lightning.system import Participation
from pfl_lightning.tasks import Classification
from pfl_lightning.tree import prefixed

pytestmark = pytest.mark.usefixtures("float64")


class OwnHeads(FedRep):
    """Every client begins with a head of its own."""

    def initial_state(self, tensors, num_clients, seed):
        source = torch.Generator().manual_seed(seed_of(seed, "heads"))
        kept = super().initial_state(tensors, num_clients, seed)
        return {name: torch.randn(stack.shape, generator=source) for name, stack in kept.items()}


def test_what_clients_keep_at_first_can_be_anything_also_for_new_clients(ragged_data, train):
    method = train(OwnHeads, 1, data := ragged_data(participation=Participation(pool_size=1), seed=3))
    expected = method.initial_state(method.network.state_dict(), 6, 3)["fc3.weight"]
    assert not torch.equal(expected[0], expected[1])
    untouched = [client for client in range(6) if client not in data.make_round(0).examples.ids]
    assert torch.equal(method.clients.stack("fc3.weight")[untouched], expected[untouched])
    method.trainer.test(method, ragged_data(new_clients=4, new_head_epochs=0, seed=3), verbose=False)
    new = method.initial_state(method.network.state_dict(), 4, seed_of(3, "new clients"))
    assert distance(new, method.clients) == 0
    assert not torch.equal(new["fc3.weight"][0], expected[0])


def test_a_server_without_a_step_of_the_optimizer_counts_its_rounds_and_the_run_goes_on(ragged_data, fit, tmp_path):
    class Idle(FedAvg):
        def server_update(self, mean, batch):
            self.network.get_parameter("fc2.bias").data += 1

    method = built(Idle, ragged_data())
    start = method.network.get_parameter("fc2.bias").clone()
    fit(method, ragged_data(), 2)
    again = built(Idle, ragged_data())
    trainer = fit(again, ragged_data(), 3, ckpt_path=tmp_path / "run/checkpoints/last.ckpt")
    assert trainer.global_step == again.accounting.clock.rounds == 3
    torch.testing.assert_close(again.network.get_parameter("fc2.bias"), start + 3)


def test_each_group_of_the_servers_parameters_has_its_own_rate(train):
    def grouped(parameters):
        first, *others = parameters
        return SGD([{"params": [first], "lr": 0.25}, {"params": others}], lr=1.0)

    method = train(FedAvg, 1, server_optimizer=grouped)
    assert [group["lr"] for group in method.trainer.optimizers[0].param_groups] == [0.25, 1.0]


@pytest.mark.parametrize("make", [FedAvg, IFCA])
def test_a_mean_of_batch_counters_does_not_lose_one_by_rounding(make):
    method = make(network=normed)
    method.build((5,), Classification().sized(3), 4)
    mean = {name: tensor.float() for name, tensor in method.network.state_dict().items()}
    mean["norm.num_batches_tracked"] = torch.tensor(10.0).nextafter(torch.tensor(0.0))
    stepping(method).server_update({**mean, **prefixed("models.1", mean), "weights": torch.ones(2)}, None)
    assert method.network.norm.num_batches_tracked == 10
    assert method.server.tree.get("1.norm.num_batches_tracked", 10) == 10


def test_every_local_setting_reaches_the_phase(ragged_data):
    same = {"momentum": 0.3, "weight_decay": 0.2, "decay_biases": True, "clip_norm": 7.0}
    method = built(FedAvg, ragged_data(), epochs=20, epoch_steps=3, **same)
    phase = method.phase("head")
    assert {name: getattr(phase, name) for name in same} == same
    assert (phase.trainable, phase.steps, phase.epochs, phase.batch_size) == (method.parts["head"], 3, 20, 4)
    assert method.finetuning.steps is None, "fine-tuning passes over all samples"


def test_adam_has_no_momentum_also_where_it_is_usual_or_for_fine_tuning(ragged_data):
    phase = built(FedRep, ragged_data(), optimizer="AdamW").finetuning
    assert (phase.optimizer, built(FedRep, ragged_data()).local_sgd.momentum) == ("AdamW", 0.5)
    with pytest.raises(PflError, match=r"^model.local.momentum must be 0 with Adam, got 0.5$"):
        LocalTraining(optimizer="Adam", momentum=0.5)


class FiveHeadEpochs(FedRep):
    """A subclass that sets an argument of its parent."""

    def __init__(self, twist: float = 1.0, **kwargs):
        super().__init__(head_epochs=5, **kwargs)
        self.twist = twist


def test_a_subclass_that_sets_its_parents_argument_can_be_loaded(ragged_data, fit, tmp_path):
    method = FiveHeadEpochs(twist=3.0, network=partial(MLP, hidden=(8, 5)), local=LocalTraining(lr=0.2))
    fit(method, ragged_data(), 1)
    loaded = load_method(tmp_path / "run/checkpoints/last.ckpt", network=partial(MLP, hidden=(8, 5)))
    assert (type(loaded), loaded.head_epochs, loaded.twist, loaded.local_sgd.lr) == (FiveHeadEpochs, 5, 3.0, 0.2)
    assert loaded.eval_models == method.eval_models


def test_cohorts_train_largest_first(ragged_data):
    data = ragged_data()
    data.setup()
    examples = data.tables["train"].examples(torch.arange(6))
    assert not examples.is_largest_first
    assert data.tables["train"].examples(largest_first(examples.counts)).is_largest_first
    method = built(FedAvg, data)
    with pytest.raises(AssertionError, match="largest_first"):
        method.local_update(examples, method.received(examples.ids), (1,))


@pytest.mark.parametrize("make", [FedAvg, DPSGD])
def test_the_clock_waits_for_lost_uploads_and_at_most_until_the_deadline(make, ragged_data, train):
    def clock(**options):
        data = ragged_data(participation=Participation(**options), communication_time=2.0)
        return train(make, 2, data).accounting.clock

    usual, slowest = clock(), ragged_data().speeds.times(0, 6).max()
    assert clock(dropout=0.5, deadline=slowest) == usual
    for deadline in (slowest / 2, slowest / 1000):
        capped = clock(deadline=deadline)
        assert capped.compute == pytest.approx(2 * deadline)
        assert capped.total == pytest.approx(2 * (deadline + 2))


def test_what_builds_on_fedavg_is_compared_under_its_own_name():
    class Mine(FedAvg):
        pass

    assert ({**Mine.suffixes}, Mine.doubled_name, Mine().is_baseline) == ({}, "Mine + doubling", False)
    assert {*FedAvg.suffixes} == {*FedAvg().eval_models}


def test_a_misspelled_hook_is_told_with_the_nearest_one():
    with pytest.warns(UserWarning, match=r"Typo\.server_updat is never called; did you mean server_update\?"):

        class Typo(Method):
            def server_updat(self, mean, batch):
                pass


def test_helpers_and_overridden_hooks_are_nothing_to_talk_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Helped(FedRep):
            def local_update(self, cohort, received, key):
                return self.helper(super().local_update(cohort, received, key))

            def helper(self, trained):
                return trained

            def on_fit_end(self):
                pass


DENSE = "APPLE CFL DPSGD DePRL DisPFL FedAMP FedAS FedEM FedFomo FedNova FedProto HeurFedAMP IFCA PFedHN QFFL"


@pytest.mark.parametrize("name", DENSE.split())
def test_what_cannot_be_pruned_is_refused(name):
    with pytest.raises(PflError, match=f"^model.sparsity.prune: True is not possible with {name}; allowed: False$"):
        vars(methods)[name](sparsity=Sparsity(weight=1e-3, threshold=1e-3, prune=True))
