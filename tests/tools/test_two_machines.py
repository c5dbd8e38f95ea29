import os
import subprocess
import sys

import pytest
import torch
from fakes.forked import PATHS
from two_machines import LOST, SMALL, Before, callback, fit, run_of


def machines_are_possible() -> bool:
    if sys.platform != "linux" or os.geteuid():
        return False
    command = "unshare --net --uts --mount sh -c 'ip link add cable type veth && ip neigh'"
    return subprocess.run(command, shell=True, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not machines_are_possible(), reason="needs network namespaces")
def test_a_slow_machine_is_waited_for_but_one_that_does_not_answer_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
    silence, slow = 2, 6
    impatient = ["--trainer.callbacks+=fakes.endings.Impatient", f"--trainer.callbacks.silence={silence}"]
    lost = callback(Before, rank=1, rounds=3, command=f"sleep {slow}; {LOST}")
    ended = fit(tmp_path, ["--model=FedRep", *SMALL, *impatient, *lost])
    assert [end.code for end in ended] == [1, 1]
    for end in ended:
        assert slow < end.late < slow + silence + 120  # of gloo's half an hour; also where other tests run
        assert "its machine does not answer (" in end.said
    folder = run_of(tmp_path) / "checkpoints"
    assert {*os.listdir(folder)} == {"best.ckpt", "last.ckpt", "previous.ckpt"}
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == 2
