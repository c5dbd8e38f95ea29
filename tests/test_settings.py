from pfl_lightning.settings import flat


def test_leaves_have_the_keys_of_the_command_line():
    settings = {"model": {"lr": 0.1, "network": {"hidden": [1, 2]}}, "seed": 3, "nothing": {}}
    assert dict(flat(settings)) == {"model.lr": 0.1, "model.network.hidden": [1, 2], "seed": 3}
    assert dict(flat(5, "seed")) == {"seed": 5}
