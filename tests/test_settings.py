import pytest
from jsonargparse import Namespace

from pfl_lightning import callbacks
from pfl_lightning.settings import class_name, flat, is_doubling, named_callbacks, run_name, shown_class

STAGES = "pfl_lightning.callbacks.StageDoubling"
FEDREP = {"class_path": "pfl_lightning.methods.FedRep", "init_args": {"lr": 0.1, "network": {"class_path": "my.Net"}}}


def test_leaves_have_the_keys_of_the_command_line():
    settings = {"model": {"lr": 0.1, "network": {"hidden": [1, 2]}}, "seed": 3, "nothing": {}}
    assert dict(flat(settings)) == {"model.lr": 0.1, "model.network.hidden": [1, 2], "seed": 3}
    assert dict(flat(5, "seed")) == {"seed": 5}


def test_a_class_has_its_path_under_its_own_key_and_its_options_below():
    settings = dict(flat({"model": FEDREP}))
    assert settings == {"model": "pfl_lightning.methods.FedRep", "model.lr": 0.1, "model.network": "my.Net"}


@pytest.mark.parametrize(
    ("path", "name", "shown"),
    [("pfl_lightning.methods.FedRep", "FedRep", "FedRep"), ("my.Net", "Net", "my.Net"), ("Digits", "Digits", "Digits")],
)
def test_a_class_path_ends_with_the_name_of_the_class(path, name, shown):
    assert class_name(path) == name
    assert shown_class(path) == shown


@pytest.mark.parametrize(
    ("method", "callbacks", "name"),
    [
        ("FedRep", [], "FedRep-Digits"),
        ("FedRep", ["StageDoubling"], "FedRep-SRPFL-Digits"),
        ("FedRep", ["EarlyStopping", "my.OwnDoubling"], "FedRep-SRPFL-Digits"),
        ("LGFedAvg", ["StageDoubling"], "LG-SRPFL-Digits"),
        ("PFedMe", ["StageDoubling"], "pFedMe+doubling-Digits"),
        ("my.Own", [], "Own-Digits"),
    ],
)
def test_a_run_is_named_by_its_method_as_in_papers_and_its_data(method, callbacks, name):
    trainer = {"callbacks": [{"class_path": path} for path in callbacks] or None}
    settings = {"model": {"class_path": method}, "data": {"class_path": "some.Digits"}, "trainer": trainer}
    assert run_name(settings) == name
    assert run_name(Namespace(**{key: Namespace(**part) for key, part in settings.items()})) == name


def test_a_single_callback_may_stand_without_a_list():
    settings = {"model": FEDREP, "data": {"class_path": "Digits"}, "trainer": {"callbacks": {"class_path": STAGES}}}
    assert run_name(settings) == "FedRep-SRPFL-Digits"


def test_callbacks_are_known_by_the_names_of_their_classes():
    stages = {"class_path": STAGES, "init_args": {"n0": 5}}
    assert named_callbacks([stages, {"class_path": "my.Own"}]) == [
        ("StageDoubling", stages),
        ("Own", {"class_path": "my.Own"}),
    ]
    assert named_callbacks(stages) == [("StageDoubling", stages)]
    assert named_callbacks(None) == []


def test_every_callback_that_doubles_and_no_other_is_told_by_its_name():
    doubling = {name for name in callbacks.__all__ if is_doubling(name)}
    assert doubling == {"StageDoubling", "GradientDoubling", "OracleDoubling"}
