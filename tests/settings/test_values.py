import pytest

from pfl_lightning.settings.values import class_name, flat, named_callbacks, shown_class

STAGES = "pfl_lightning.callbacks.StageDoubling"
FEDREP = {
    "class_path": "pfl_lightning.methods.FedRep",
    "init_args": {"local": {"lr": 0.1}, "network": {"class_path": "my.Net"}},
}


def test_leaves_have_the_keys_of_the_command_line():
    settings = {"model": {"local": {"lr": 0.1}, "network": {"hidden": [1, 2]}}, "seed": 3, "nothing": {}}
    assert dict(flat(settings)) == {"model.local.lr": 0.1, "model.network.hidden": [1, 2], "seed": 3}
    assert dict(flat(5, "seed")) == {"seed": 5}


def test_a_class_has_its_path_under_its_own_key_and_its_options_below():
    settings = dict(flat({"model": FEDREP}))
    assert settings == {"model": "pfl_lightning.methods.FedRep", "model.local.lr": 0.1, "model.network": "my.Net"}


@pytest.mark.parametrize(
    ("path", "name", "shown"),
    [("pfl_lightning.methods.FedRep", "FedRep", "FedRep"), ("my.Net", "Net", "my.Net"), ("Digits", "Digits", "Digits")],
)
def test_a_class_path_ends_with_the_name_of_the_class(path, name, shown):
    assert class_name(path) == name
    assert shown_class(path) == shown


def test_callbacks_are_known_by_the_names_of_their_classes():
    stages = {"class_path": STAGES, "init_args": {"n0": 5}}
    assert named_callbacks([stages, {"class_path": "my.Own"}]) == [
        ("StageDoubling", stages),
        ("Own", {"class_path": "my.Own"}),
    ]
    assert named_callbacks(stages) == [("StageDoubling", stages)]
    assert named_callbacks(None) == []
