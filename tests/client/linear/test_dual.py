from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes.cohorts import COUNTS, examples_of, params_of
from fakes.methods import distance

from pfl_lightning.client import Correlation, Engine, Follow, Phase, Proximity, total
from pfl_lightning.client.linear.dual import DualLayer
from pfl_lightning.client.linear.recursion import Tie
from pfl_lightning.client.linear.steps import tie_of
from pfl_lightning.models import MLP, LinearNetwork
from pfl_lightning.tree import Params


def examples():
    return examples_of(shape=(20,))


@pytest.fixture
def dual_steps(monkeypatch):
    """Counts the steps that are taken in dual form."""
    steps = []
    read = DualLayer.read
    monkeypatch.setattr(DualLayer, "read", lambda self, *where: steps.append(where) or read(self, *where))
    return steps


TIES = [
    {},
    {"momentum": 0.9, "epochs": 2, "steps": 2},
    {"momentum": 0.9, "batch_size": 50, "epochs": 3},
    {"momentum": 1.0, "batch_size": 1, "epochs": 2},
    {"proximity": 0.5},
    {"correlation": 0.5},
    {"correlation": 0.5, "follow": 0.3, "momentum": 0.9, "epochs": 6, "steps": 1},
]
RICH = [
    {"momentum": 0.9, "weight_decay": 0.3, "epochs": 3},
    {"momentum": 0.9, "epochs": 6, "steps": 1},
    {"proximity": 0.5, "momentum": 0.9, "weight_decay": 0.3, "epochs": 3},
    {"proximity": 0.5, "follow": 0.3, "momentum": 0.9, "weight_decay": 0.3, "epochs": 3},
    {"correlation": 0.5, "follow": 0.3, "momentum": 0.9, "weight_decay": 0.3, "epochs": 3},
]
NETWORKS = [partial(LinearNetwork, rank=16), partial(MLP, hidden=())]


@pytest.mark.parametrize(
    ("make", "settings", "own"),
    [
        *((partial(MLP, hidden=(16, 5)), settings, False) for settings in [*TIES, *RICH]),
        *((partial(MLP, hidden=(16, 5), dropouts=(0.3, 0.5)), settings, False) for settings in RICH),
        *((make, settings, True) for make in [partial(MLP, hidden=(16, 5)), *NETWORKS] for settings in RICH),
    ],
    ids=str,
)
def test_dual_form_is_what_the_sequential_backend_does(make, settings, own, dual_steps):
    network, cohort = make((20,), 16), examples()
    phase = phase_of(network.state_dict(), **settings)
    params = params_of(network, network.state_dict() if own else ())
    params = params.beside("anchor", params)
    expected, losses = Engine(network, "sequential").train(cohort, params, phase, (1,))
    assert not dual_steps
    trained, dual_losses = Engine(network).train(cohort, params, phase, (1,))
    assert len(dual_steps) == phase.epochs * min(-(-max(COUNTS) // phase.batch_size), phase.steps or max(COUNTS))
    update = distance(expected.own, params.tree)
    assert update > 1e-2
    assert distance(expected.own, trained.own) < 1e-10 * update
    torch.testing.assert_close(dual_losses, losses)


def phase_of(names, proximity=0.0, correlation=0.0, follow=0.0, **settings):
    penalties = [Proximity(proximity) if proximity else None, Correlation(correlation) if correlation else None]
    moves = frozenset(names) | frozenset(f"anchor.{name}" for name in names if follow)
    rules = {"penalty": total(*penalties), "after_step": Follow(follow, "anchor") if follow else None}
    return Phase(moves, **{"epochs": 1, "batch_size": 4, "lr": 0.1, **rules, **settings})


@pytest.mark.parametrize("anchor", ["own", "elsewhere"])
@pytest.mark.parametrize(
    "settings",
    [
        {"proximity": 0.5},
        {"correlation": -1.0, "weight_decay": 0.3, "epochs": 2},
        {"proximity": 0.5, "momentum": 0.9, "weight_decay": 0.3, "epochs": 3},
        {"correlation": 0.5, "momentum": 0.9, "epochs": 6, "steps": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("to_start", [False, True], ids=["one pull", "and one to the start"])
def test_a_pull_to_another_place_has_a_dual_form_too(to_start, settings, anchor, dual_steps):
    network, cohort = MLP((20,), 16, hidden=(16, 5)), examples()
    params = params_of(network)
    moved = {name: tensor + torch.randn_like(tensor) for name, tensor in params.shared.items()}
    anchors = Params(moved, {}).owned(moved if anchor == "own" else (), len(COUNTS))
    phase = phase_of(params.shared, **settings)
    if to_start:
        phase = replace(phase, penalty=total(Proximity(0.7, "start"), phase.penalty))
    params = params.beside("start", params).beside("anchor", anchors)
    expected, _ = Engine(network, "sequential").train(cohort, params, phase, (1,))
    trained, _ = Engine(network).train(cohort, params, phase, (1,))
    assert dual_steps
    assert distance(expected.own, trained.own) < 1e-10 * distance(expected.own, params.tree)


def test_there_is_no_tie_to_an_anchor_that_follows_but_may_not_move():
    params = params_of(MLP((20,), 16))
    phase = phase_of(params.shared, correlation=0.5, follow=0.3)
    start = params.beside("anchor", params)
    assert tie_of("fc1.weight", start, phase) == (Tie(0.0, -0.5, 0.3), None)
    assert tie_of("fc1.weight", start, replace(phase, trainable=phase.trainable - {"anchor.fc1.weight"})) is None
    start = start.beside("start", params)
    assert tie_of("fc1.weight", start, replace(phase, penalty=Proximity(0.7, "start"))) is None


def test_there_is_no_tie_to_two_places_other_than_the_start():
    params = params_of(MLP((20,), 16))
    other = Params({name: tensor + 1 for name, tensor in params.shared.items()}, {})
    penalty = total(Proximity(0.7, "one"), Proximity(0.2, "two"))
    places = params.beside("one", other).beside("two", other)
    assert tie_of("fc1.weight", places, replace(phase_of(params.shared), penalty=penalty)) is None


@pytest.mark.parametrize(
    ("outputs", "samples", "settings", "measured"),  # seconds of the dual form / those of the weight's own steps
    [
        (512, 150, {}, 0.52),
        (512, 300, {"epochs": 5}, 0.43),
        (10, 20, {"epochs": 5}, 0.61),
        (10, 150, {}, 2.11),
        (100, 300, {}, 0.98),
        (200, 300, {"steps": 1}, 11),
        (512, 768, {"batch_size": 50, "epochs": 5}, 1.95),
    ],
)
def test_the_rule_takes_what_was_measured_to_be_faster(outputs, samples, settings, measured):
    phase = Phase(frozenset({"w"}), **{"epochs": 1, "batch_size": 10, "lr": 0.1, "momentum": 0.5, **settings})
    assert DualLayer.pays(samples, torch.empty(3, outputs, 784), phase) == (measured < 0.9)


def test_inputs_that_do_not_stay_are_not_for_the_dual_form():
    assert not DualLayer.pays(0, torch.empty(3, 512, 784), Phase(frozenset({"w"}), 2, 10, lr=0.1))
