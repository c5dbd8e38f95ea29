"""What a phase can do beside plain SGD, against the optimizers of torch on a loss that has the penalty in it."""

from collections import OrderedDict
from functools import partial
from itertools import chain

import pytest
import torch
from fakes.cohorts import COUNTS, examples_of, params_of
from fakes.loops import batches
from fakes.methods import distance
from fakes.torch_sgd import KEY, by_torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from pfl_lightning.client import Correlation, Cosine, Engine, Masked, Phase, Proximity, Ridge, SmoothL1
from pfl_lightning.client.optimizers import Moving
from pfl_lightning.client.penalties import Total
from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, LeNet5
from pfl_lightning.tree import Params, prefixed

NETWORKS = {
    "mlp": partial(MLP, hidden=(12, 5)),
    "lenet": partial(LeNet5, channels=(2, 3), hidden=(6, 5)),
}
every_backend = pytest.mark.parametrize("backend", ["sequential", "batched"])


def near(moving, tensors):
    return 0.15 * sum((w - tensors[f"anchor.{name}"]).square().sum() for name, w in moving.items())


def along(moving, tensors):
    return -0.02 * sum((w * tensors[f"anchor.{name}"]).sum() for name, w in moving.items())


def turned(moving, tensors):
    anchors = torch.cat([tensors[f"anchor.{name}"].flatten() for name in moving])
    return -0.4 * F.cosine_similarity(torch.cat([w.flatten() for w in moving.values()]), anchors, dim=0)


def small(moving, tensors):
    return 0.03 * sum(0.1 * torch.log(torch.cosh(w / 0.1)).sum() for w in moving.values())


def last_bias(moving, tensors):
    return 0.15 * next(w.square().sum() for name, w in moving.items() if name in LAST_BIAS)


def everything(moving, tensors):
    return near(moving, tensors) + along(moving, tensors) + small(moving, tensors)


LAST_BIAS = frozenset({"fc3.bias"})
PENALTIES = (Proximity(0.3, "anchor"), Correlation(0.02, "anchor"), SmoothL1(0.03, 0.1))
RULES = {
    "proximity": ({"penalty": PENALTIES[0]}, near),
    "correlation": ({"penalty": PENALTIES[1]}, along),
    "cosine": ({"penalty": Cosine(0.4, "anchor")}, turned),
    "smooth l1": ({"penalty": PENALTIES[2]}, small),
    "ridge": ({"penalty": Ridge(0.3, LAST_BIAS)}, last_bias),
    "all three": ({"penalty": Total(PENALTIES)}, everything),
    "all three with momentum": ({"penalty": Total(PENALTIES), "momentum": 0.5, "weight_decay": 0.1}, everything),
    "clipping": ({"clip_norm": 0.3, "momentum": 0.5, "weight_decay": 0.1}, None),
    "clipping with a penalty": ({"clip_norm": 0.3, "penalty": PENALTIES[0]}, near),
    "decay of biases": ({"decay_biases": True, "weight_decay": 0.1, "momentum": 0.5}, None),
    "Adam": ({"optimizer": "Adam", "lr": 0.01, "weight_decay": 0.1}, None),
    "AdamW": ({"optimizer": "AdamW", "lr": 0.01, "weight_decay": 0.1, "decay_biases": True}, None),
    "AdamW with a penalty": ({"optimizer": "AdamW", "lr": 0.01, "penalty": Total(PENALTIES)}, everything),
    "Adam with clipping": ({"optimizer": "Adam", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 0.3}, None),
    "single steps": ({"epochs": 5, "steps": 1, "momentum": 0.5}, None),
    "two steps an epoch": ({"epochs": 2, "steps": 2, "penalty": PENALTIES[0]}, near),
    "a step in all": ({"epochs": 1, "steps": 1}, None),
}


def test_zeros_have_no_direction():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
    anchors = torch.tensor([[1.0, 2.0], [0.0, 0.0], [4.0, -3.0]])
    found = Cosine(0.5)({"w": rows}, {"anchor.w": anchors})["w"]
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0], [0.0, 0.0], [-0.08, 0.06]]))


RICH = ("AdamW", "all three with momentum", "clipping with a penalty", "two steps an epoch")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "part", "own"),
    [*((rule, "all", False) for rule in RULES), *((rule, part, True) for rule in RICH for part in ("all", "head"))],
)
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_phase_with_rules_is_torchs_on_the_loss_with_the_penalty(backend, rule, part, own, make):
    network, examples, (rules, value) = make((1, 16, 16), 3), examples_of(), RULES[rule]
    names = network.state_dict() if own else ()
    params = params_of(network, names).beside("anchor", params_of(network, names))
    phase = Phase(network.parts(1)[part], **{"epochs": 2, "batch_size": 4, "lr": 0.1, **rules})
    trained, losses = Engine(network, backend).train(examples, params, phase, KEY)
    for client in range(len(COUNTS)):
        reference, loss = by_torch(network, examples, params, phase, client, value)
        update = distance(reference, params.client(client))
        assert update > 1e-3
        assert distance(reference, trained.client(client)) < 1e-10 * update
        assert losses[client].item() == pytest.approx(loss, abs=1e-10)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_term_of_a_mini_batch_is_of_the_samples_that_are_there(backend, make):
    network, examples = make((1, 16, 16), 3), examples_of()
    engine, params = Engine(network, backend), params_of(network)
    engine.head = network.parts(1)["head"]
    body = nn.Sequential(OrderedDict([*network.named_children()][:-1]))

    def near_zero(outputs, features, targets, extras):
        return F.cross_entropy(outputs, targets, reduction="none") + (extras["weights"] @ features).square().sum()

    phase = Phase(frozenset(network.state_dict()), 2, 4, 0.1, feature_loss=near_zero)
    trained, _ = engine.train(examples, params, phase, KEY)
    for client in range(len(COUNTS)):
        model = params.client(client)
        for inputs, targets in chain(*batches(examples.rows(client, client + 1), KEY, epochs=2)):

            def loss(tensors, inputs=inputs, targets=targets):
                features = functional_call(body, {name: tensors[name] for name in body.state_dict()}, inputs)
                outputs = functional_call(network, tensors, inputs)
                return F.cross_entropy(outputs, targets) + features.mean(0).square().sum()

            slopes = grad(loss)(model)
            model = {name: tensor - 0.1 * slopes[name] for name, tensor in model.items()}
        assert distance(model, trained.client(client)) < 1e-10


def test_the_batches_of_single_steps_are_random_and_no_more_is_computed_than_they_visit(backend, monkeypatch):
    network, examples = NETWORKS["mlp"]((1, 16, 16), 3), examples_of(counts=(60, 50))
    gathered = []
    gather = type(examples).gather
    monkeypatch.setattr(
        type(examples), "gather", lambda self, at, *bits: gathered.append(at) or gather(self, at, *bits)
    )
    phase = Phase(frozenset(network.state_dict()), epochs=5, batch_size=4, lr=0.1, steps=1)
    Engine(network, backend).train(examples, params_of(network), phase, KEY)
    assert sum(positions.numel() for positions in gathered) == 5 * 4 * 2
    visited = torch.cat([positions[0] for positions in gathered])
    assert len(visited.unique()) > 8, "not the same batch over and over"


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_feature_loss_that_is_a_mean_is_refused(backend, make):
    network = make((1, 16, 16), 3)
    phase = Phase(frozenset(network.state_dict()), 1, 4, 0.1, feature_loss=lambda *given: given[0].square().mean())
    engine = Engine(network, backend)
    engine.head = network.parts(1)["head"]
    with pytest.raises(PflError, match=r"^phase.feature_loss: shape \(\) for \d+ samples is not possible"):
        engine.train(examples_of(), params_of(network), phase, KEY)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_masks_hold_behind_each_step(backend, make):
    network, examples = make((1, 16, 16), 3), examples_of()
    masks = {name: torch.rand(len(COUNTS), *t.shape) < 0.5 for name, t in network.state_dict().items()}
    start = {name: tensor * masks[name] for name, tensor in network.state_dict().items()}
    params = Params({}, {**start, **prefixed("mask", masks)})
    phase = Phase(frozenset(masks), epochs=2, batch_size=4, lr=0.1, momentum=0.5, after_step=Masked("mask"))
    trained, _ = Engine(network, backend).train(examples, params, phase, KEY)
    for name, mask in masks.items():
        assert not trained.own[name][mask == 0].any()
        assert (trained.own[name] - start[name])[mask == 1].abs().max() > 0
        assert torch.equal(trained.own[f"mask.{name}"], mask)


def train_beside_an_anchor(**rules):
    network = NETWORKS["mlp"]((1, 16, 16), 3)
    params = params_of(network)
    phase = Phase(frozenset(network.state_dict()), 1, 4, 0.1, **rules)
    Engine(network).train(examples_of(), params.beside("anchor", params), phase, KEY)


def test_a_rule_may_only_change_what_moves():
    with pytest.raises(PflError, match=r"phase\.after_step: anchor\.fc1\.weight is not possible; allowed: names in"):
        train_beside_an_anchor(after_step=lambda tensors, extras: {"anchor.fc1.weight": tensors["fc1.weight"]})


def test_a_penalty_may_leave_some_tensors_alone(backend):
    network, examples = NETWORKS["mlp"]((1, 16, 16), 3), examples_of()

    def on_weights(tensors, extras):
        return {name: 0.3 * tensor for name, tensor in tensors.items() if name.endswith("weight")}

    def trained(**rule):
        phase = Phase(frozenset(network.state_dict()), 2, 4, 0.1, **rule)
        return Engine(network, backend).train(examples, params_of(network), phase, KEY)[0].own

    penalized = trained(penalty=Total((on_weights, on_weights)))
    torch.testing.assert_close(penalized, trained(weight_decay=0.6), atol=1e-12, rtol=0)


def test_a_missing_anchor_is_named():
    with pytest.raises(PflError, match=r"phase\.penalty: there is no ankor\.fc1\.\w+; add the anchors with Params"):
        train_beside_an_anchor(penalty=Proximity(0.5, "ankor"))


@pytest.mark.parametrize("key", ["epochs", "batch_size", "steps"])
def test_a_phase_without_a_step_is_refused(key):
    settings = {"trainable": frozenset("w"), "epochs": 1, "batch_size": 10, "lr": 0.1}
    with pytest.raises(PflError, match=rf"phase\.{key}: 0 is not possible; allowed: 1 or more"):
        Phase(**settings | {key: 0})
    with pytest.raises(PflError, match=r"phase\.trainable: nothing is not possible; allowed: names of tensors"):
        Phase(**settings | {"trainable": frozenset()})


@pytest.mark.parametrize(
    ("smoothing", "at", "slope"), [(1.0, -2.0, -0.9640275801), (0.1, 0.05, 0.4621171573), (1.0, 1000.0, 1.0)]
)
def test_the_slope_of_smooth_l1_is_known(smoothing, at, slope):
    # the hyperbolic tangent of at / smoothing, times the strength
    slopes = SmoothL1(2.0, smoothing)({"w": torch.tensor([[at]])}, {})
    assert slopes["w"].item() == pytest.approx(2 * slope, abs=1e-9)


def test_adam_counts_its_steps_in_bfloat16_too():
    torch.set_default_dtype(torch.bfloat16)  # as Lightning does
    parameters = {"w": torch.zeros(2, 3, dtype=torch.bfloat16)}
    steps = Moving.start(parameters, Phase({"w"}, 1, 1, 0.1, optimizer="Adam")).steps["w"]
    assert steps.tolist() == [0, 0]
    assert (steps + 256 + 1).tolist() == [257, 257]
