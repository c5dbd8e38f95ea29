"""Local learning rates over rounds, held against torch's own schedulers and against runs that change their rate."""

from functools import partial

import pytest
import torch
from fakes.methods import built
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from pfl_lightning import load_method
from pfl_lightning.client import LocalTraining
from pfl_lightning.client.schedule import Schedule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedRep


def warm_up_then_fall(optimizer):
    parts = [LinearLR(optimizer, start_factor=0.25, total_iters=3), CosineAnnealingLR(optimizer, T_max=5)]
    return SequentialLR(optimizer, parts, milestones=[3])


COSINE = partial(CosineAnnealingLR, T_max=8, eta_min=0.1)
SCHEDULERS = {
    "cosine": COSINE,
    "one cycle": partial(OneCycleLR, max_lr=1.0, total_steps=8),
    "warm-up": partial(LinearLR, start_factor=0.1, total_iters=4),
    "steps": partial(MultiStepLR, milestones=[2, 5], gamma=0.3),
    "both": warm_up_then_fall,
}


def rates_of_torch(make, lr, rounds):
    """The rates of an optimizer whose scheduler steps after each round, as in any training loop."""
    optimizer = SGD([torch.zeros(1)], lr=lr)
    scheduler, rates = make(optimizer), []
    for _ in range(rounds):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_every_rate_of_a_method_follows_the_scheduler(make, ragged_data):
    method = built(partial(FedRep, head_lr=0.4), ragged_data(), lr_schedule=make)
    factors = rates_of_torch(make, 1.0, 8)
    assert len(set(factors)) > 2
    for done, factor in enumerate(factors):
        method.accounting.clock.rounds = done
        assert (method.phase("body", 1).lr, method.phase("head", 1, 0.4).lr) == (0.1 * factor, 0.4 * factor)
        assert method.finetuning.lr == 0.4, "fine-tuning is as good late as early"


def test_decay_is_the_short_way_to_steps():
    short, long = Schedule(decay=0.5, every=3), Schedule(partial(StepLR, step_size=3, gamma=0.5))
    assert [short.factor(place) for place in range(9)] == [long.factor(place) for place in range(9)]
    assert short.factor(8) == 0.25


def test_rounds_may_be_asked_for_in_any_order():
    schedule = Schedule(SCHEDULERS["both"])
    late, early = schedule.factor(7), schedule.factor(2)
    assert [early, late] == [rates_of_torch(SCHEDULERS["both"], 1.0, 8)[place] for place in (2, 7)]


def test_a_schedule_is_that_of_the_checkpoint_unless_it_is_refused(ragged_data, fit, tmp_path):
    method = built(FedAvg, ragged_data(), lr_schedule=COSINE)
    fit(method, ragged_data(), 1)
    path = tmp_path / "run/checkpoints/last.ckpt"
    loaded = load_method(path, network=method.make_network)
    assert loaded.schedule.factor(3) == method.schedule.factor(3)
    with pytest.raises(PflError, match=r"lr_schedule: torch\.\S*CosineAnnealingLR in the checkpoint, none now"):
        load_method(path, network=method.make_network, local=LocalTraining())


def test_a_rate_is_logged_if_it_is_not_constant(train):
    constant, falling = (train(FedAvg, 4, lr_schedule=make).trainer.callback_metrics for make in (None, COSINE))
    assert "train/lr" not in constant
    rate = 0.1 * rates_of_torch(COSINE, 1.0, 4)[3]
    assert float(falling["train/lr"]) == pytest.approx(rate, rel=1e-6)  # logged in float32


@pytest.mark.parametrize(
    ("options", "rounds", "line"),
    [
        ({"make": partial(ReduceLROnPlateau)}, 1, "ReduceLROnPlateau needs a metric; allowed: one that counts rounds"),
        ({"make": partial(OneCycleLR, max_lr=1, total_steps=3)}, 5, "not possible in round 4: Tried to step 4 times"),
        (
            {"make": partial(LambdaLR, lr_lambda=lambda done: 1 - done)},
            3,
            "be finite and at least 0, got -1 in round 2",
        ),
        ({"make": partial(StepLR, step_size=1, gamma=float("nan"))}, 2, "finite and at least 0, got nan in round 1"),
        ({"make": partial(CosineAnnealingLR, T_max=0)}, 2, "not possible in round 1: "),
        ({"make": partial(LinearLR), "decay": 0.5}, 1, "0.5 is not possible with model.local.lr_schedule; allowed: 1"),
    ],
)
def test_what_cannot_be_a_schedule_of_rounds_is_refused_in_a_line(options, rounds, line):
    with pytest.raises(PflError) as refused:
        Schedule(**options).factor(rounds - 1)
    assert line in str(refused.value)
    assert str(refused.value).startswith("model.local.lr_")
