from functools import partial
from inspect import Parameter, isabstract, signature
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from pfl_lightning import callbacks, data, server, system
from pfl_lightning.callbacks.doubling import Doubling
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Arrays, Digits, Dirichlet, Partition, Sizes
from pfl_lightning.methods import HFMAML, FedRep
from pfl_lightning.models import MLP
from pfl_lightning.objects import (
    FROM_PYTHON,
    changed_arguments,
    clone,
    known_subclass,
    makes_network,
    to_settings,
    unserializable_keys,
)
from pfl_lightning.server import Aggregator, DPAggregator, Ring, Topology
from pfl_lightning.system import Participation, Speeds

BASES = (Partition, Sizes, Speeds, Participation, Aggregator, Topology, Doubling, callbacks.ClientMetrics)
BASES = (*BASES, callbacks.CosineMaps, callbacks.SparsityTracker, callbacks.RoundCheckpoint, callbacks.PercentileErrors)
KINDS = [
    kind
    for package in (callbacks, data, server, system)
    for kind in vars(package).values()
    if isinstance(kind, type) and issubclass(kind, BASES) and not isabstract(kind)
]
NEEDED = {"metric": torch.nn.Identity, "path": Path("graph.txt"), "n0": 3, "floor": 0.1}


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_is_an_attribute_of_the_same_name(kind):
    parameters = signature(kind).parameters.values()
    needed = {each.name: NEEDED[each.name] for each in parameters if each.default is Parameter.empty}
    made = kind(**needed)
    expected = {each.name: needed.get(each.name, each.default) for each in parameters}
    assert {name: getattr(made, name) for name in expected} == expected


def test_settings_say_a_class_and_what_it_was_made_with():
    method = FedRep(
        local=LocalTraining(lr=0.05), network=partial(MLP, hidden=(8,)), server_optimizer=partial(SGD, lr=0.5)
    )
    assert to_settings(method) == {
        "class_path": "pfl_lightning.methods.FedRep",
        "init_args": {
            "local": to_settings(LocalTraining(lr=0.05)),
            "network": {"class_path": "pfl_lightning.models.MLP", "init_args": {"hidden": [8]}},
            "server_optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}},
        },
    }
    assert to_settings(HFMAML()) == {"class_path": "pfl_lightning.methods.HFMAML", "init_args": {}}, "not what it fixes"
    partition = to_settings(Digits(partition=Dirichlet(0.4)))["init_args"]["partition"]
    assert partition == {"class_path": "pfl_lightning.data.Dirichlet", "init_args": {"alpha": 0.4}}


def test_a_plain_argument_that_equals_its_default_is_left_out_and_one_of_another_type_is_not():
    lr, weighting = float("0.01"), "".join(["sam", "ples"])
    assert to_settings(FedRep(eval_epochs=True, head_lr=lr, weighting=weighting))["init_args"] == {
        "eval_epochs": True,
        "head_lr": lr,
    }


@pytest.mark.parametrize(
    ("name", "given", "plain"),
    [
        ("epochs", np.int64(2), 2),
        ("epochs", torch.tensor(3), 3),
        ("lr", np.float32(0.5), 0.5),
        ("decay_biases", np.bool_(True), True),
    ],
)
def test_a_number_of_numpy_or_torch_is_a_number(name, given, plain):
    said = to_settings(FedRep(local=LocalTraining(**{name: given})))["init_args"]["local"][name]
    assert (said, type(said)) == (plain, type(plain))


def test_what_settings_cannot_say_is_a_line_at_its_place():
    images = np.zeros((4, 2))
    said = to_settings(Arrays(images, np.arange(4), test=(images, images)))
    assert said["init_args"] == {
        "inputs": f"{FROM_PYTHON}ndarray",
        "targets": f"{FROM_PYTHON}ndarray",
        "test": f"{FROM_PYTHON}tuple",
    }
    assert list(unserializable_keys(said)) == [("init_args", name) for name in ("inputs", "targets", "test")]


def test_an_object_made_anew_shares_no_state_and_all_arrays():
    images = np.zeros((4, 2))
    data = Arrays(images, np.arange(4), participation=Participation(2))
    data.participation.resize(1)
    again = clone(data, seed=5)
    assert (again.seed, again.participation.pool_size, again.participation.cohort_size) == (5, 2, None)
    assert again.init_args["inputs"] is images
    method = FedRep(aggregator=DPAggregator(0.5), weighting="uniform")
    method.aggregator.count(3)
    assert clone(method).aggregator.calls == 0
    assert clone(method).aggregator.clip_norm == 0.5


def test_an_object_that_does_not_keep_its_arguments_is_used_as_it_is():
    class Speed(Ring):
        def __init__(self, number: int) -> None:
            self.other = number

    made = Speed(3)
    assert changed_arguments(made) is None
    assert clone(made) is made
    assert to_settings(made) == f"{FROM_PYTHON}Speed"


def network() -> nn.Sequential:
    """A network."""


def networks() -> list[nn.Module]:
    """No network."""


@pytest.mark.parametrize(("made", "expected"), [(network, True), (networks, False), (nn.Linear, False), (len, False)])
def test_a_function_makes_a_network_if_it_says_so(made, expected):
    assert makes_network(made) is expected


def test_a_known_subclass_is_ours_the_users_or_one_of_a_library_that_is_imported(tmp_path, monkeypatch):
    for folder, name in (("", "owned"), ("", "part/deep"), ("site-packages", "installed")):
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("from torch import nn\n\nclass Net(nn.Module):\n    pass\n")
    for folder in ("", "site-packages"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    assert known_subclass("pfl_lightning.models.MLP", nn.Module) is MLP
    assert known_subclass("torch.nn.Linear", nn.Module) is nn.Linear
    for path in ("owned.Net", "part.deep.Net"):
        assert known_subclass(path, nn.Module).__name__ == "Net"
    assert known_subclass("installed.Net", nn.Module) is None
    __import__("installed")
    assert known_subclass("installed.Net", nn.Module).__name__ == "Net"
    for path in ("torch.nn.Linear", "owned.nn", "owned.none", "none.Net", "json.tool:main", "Net", ".Net", ""):
        assert known_subclass(path, SGD) is None
