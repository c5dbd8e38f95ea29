import pytest
import torch
from fakes.methods import TINY, small
from fakes.participants import CountParticipants
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.callbacks import GradientDoubling
from pfl_lightning.callbacks.gradient_doubling import squared_gradient_norm
from pfl_lightning.client import LocalTraining
from pfl_lightning.errors import PflError
from pfl_lightning.methods import IFCA, Ditto, Local, PFedHN
from pfl_lightning.server import SecureAggregator
from pfl_lightning.system import Participation


def make(**changes):
    return small(local=LocalTraining(batch_size=4, lr=0.1), **changes)


@pytest.fixture
def set_norms(monkeypatch):
    """Sets the squared norms of the gradients of a run."""

    def replace(norms):
        values = iter(norms)
        monkeypatch.setattr("pfl_lightning.callbacks.gradient_doubling.squared_gradient_norm", lambda *_: next(values))

    return replace


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_norm_is_that_of_the_gradient_of_all_samples(chunk_size, ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    data, method = ragged_data(val_fraction=0.0), make(chunk_size=chunk_size)
    fit(method, data, 1)
    batch = data.make_round(1)
    train = data.tables["train"]
    inputs, targets = train.samples.inputs[train.flat[:-1]], train.samples.targets[train.flat[:-1]]
    weights = {name: tensor.clone().requires_grad_() for name, tensor in method.network.state_dict().items()}
    F.cross_entropy(functional_call(method.network, weights, inputs), targets).backward()
    expected = sum(float(tensor.grad.square().sum()) for tensor in weights.values())
    assert squared_gradient_norm(method, batch) == pytest.approx(expected, rel=1e-9)
    assert expected > 1e-4


@pytest.mark.slow
def test_stages_end_below_a_threshold_that_halves_or_after_their_rounds(ragged_data, fit, set_norms):
    # the first stage has its 3 rounds, whatever the gradient; then the threshold is 8 / 2, which round 5 meets; then
    # it is 2, which nothing meets, so the third stage has its 3 rounds as well
    doubling = GradientDoubling(n0=1, rounds_per_stage=3)
    participants = CountParticipants()
    for folder in ("one", "two"):  # an object that is used again starts anew
        set_norms([1.0, 9.0, 8.0, 4.5, 3.9, 2.5, 2.1, 2.3, 2.2])
        fit(make(), ragged_data(), 9, folder, callbacks=[doubling, participants])
    assert participants.sizes == 2 * [1, 1, 1, 2, 2, 4, 4, 4, 6]


def test_a_resumed_run_goes_on_in_its_stage(ragged_data, fit, tmp_path):
    def run(rounds, folder, ckpt_path=None):
        doubling = GradientDoubling(n0=1, rounds_per_stage=2)
        trainer = fit(make(), ragged_data(), rounds, folder, ckpt_path, [doubling])
        return trainer.lightning_module.state_dict(), doubling.state_dict()

    straight, stage = run(5, "straight")
    run(3, "resumed")
    resumed, resumed_stage = run(5, "resumed", tmp_path / "resumed/checkpoints/last.ckpt")
    torch.testing.assert_close(resumed, straight, rtol=0, atol=0)
    assert stage == resumed_stage
    assert stage["stage"] >= 2


@pytest.mark.parametrize(
    ("method", "shared"), [(Local, "nothing"), (IFCA, "no single model"), (PFedHN, "no single model")]
)
def test_a_method_without_one_shared_model_is_refused(method, shared, ragged_data, fit):
    line = f"GradientDoubling needs one shared model, but {method.__name__} shares {shared}; use StageDoubling"
    with pytest.raises(PflError, match=line):
        fit(method(network=TINY), ragged_data(), 1, callbacks=[GradientDoubling()])


def test_a_method_with_a_second_model_has_a_gradient_too(ragged_data, fit):
    trainer = fit(Ditto(network=TINY), ragged_data(), 1, callbacks=[GradientDoubling(n0=1)])
    assert trainer.callback_metrics["train/squared_gradient_norm"] > 0


def test_a_round_that_is_given_up_for_too_few_uploads_does_not_count(ragged_data, fit, set_norms):
    set_norms([1.0] * 20)
    doubling = GradientDoubling(n0=3, rounds_per_stage=100)
    data = ragged_data(participation=Participation(dropout=0.6))
    fit(make(aggregator=SecureAggregator()), data, 20, callbacks=[doubling])
    data.participation.resize(3)  # as it was in the run
    uploads = [len(data.make_round(index).examples) for index in range(20)]
    assert {0, 1, 2} <= {*uploads}
    assert doubling.rounds == sum(count >= 2 for count in uploads)
