import torch

from pfl_lightning.federation.versions import Versions
from pfl_lightning.tree import Params


def sent(number):
    return {"w": torch.full((2, 3), float(number)), "server.c": torch.tensor(number)}


def test_a_version_is_kept_once_as_it_was_for_as_long_as_it_is_held():
    versions, now = Versions(), sent(0)
    versions.keep([0], 0, now)
    now["w"] += 1  # the server steps in place
    versions.keep([0, 1], 1, now)
    now["w"] += 1
    received = versions.received(torch.tensor([1, 2, 0, 1]), 2, Params(now, {}))
    assert not received.shared
    rows = received.own
    assert rows["w"][:, 0, 0].tolist() == [1, 2, 0, 1]
    assert rows["server.c"].shape == (4,)
    versions.keep([1], 2, now)
    assert list(versions.trees) == [1]
