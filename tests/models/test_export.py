"""Exported files are loaded back, and give what the network gives, for batches of other sizes too."""

import multiprocessing
import os
import resource
import signal
from functools import partial

import pytest
import torch
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, CharGRU, LeNet5, TweetLSTM, ViT
from pfl_lightning.models.export import export
from pfl_lightning.models.network import two_inputs

TRACES_VIT = pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 cannot trace a ViT")


def loaded(path, network):
    """What the file computes."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


class Branching(nn.Linear):
    """Branches on its inputs, so that no program can hold it."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) if inputs.sum() > 0 else inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "suffix"),
    [
        (MLP, (1, 8, 8), ".pt"),
        (LeNet5, (3, 32, 32), ".pt2"),
        pytest.param(partial(ViT, depth=1), (3, 32, 32), ".pt2", marks=TRACES_VIT),
        (CharGRU, (6, 20), ".pt2"),
        (TweetLSTM, (6, 20), ".pt2"),
    ],
)
def test_a_file_gives_what_the_network_gives(kind, shape, suffix, tmp_path):
    network = kind(shape, 10).eval()
    path = tmp_path / f"model{suffix}"
    inputs = torch.cat([two_inputs(shape, network.takes) for _ in range(3)])
    export(network, inputs[:2], path)
    for batch in (inputs[:1], inputs[:5]):
        outputs = loaded(path, kind(shape, 10))(batch)
        torch.testing.assert_close(outputs, network(batch), rtol=1e-5, atol=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_network_that_torch_cannot_trace_gets_a_line_and_leaves_no_file(tmp_path):
    with pytest.raises(PflError, match=r"torch cannot export Branching for batches of any size; allowed: \.pt"):
        export(Branching(3, 3).eval(), torch.zeros(2, 3), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def in_a_process(work) -> int | None:
    """The exit code of some work, or the signal that has ended it, with a minus."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_a_network_that_finds_no_room_names_its_file_and_leaves_nothing(suffix, tmp_path):
    path = tmp_path / f"model{suffix}"

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(OSError, match="File too large") as caught:
            export(nn.Linear(200, 200).eval(), torch.zeros(2, 200), path)
        assert caught.value.filename == str(path)

    assert in_a_process(work) == 0
    assert not list(tmp_path.iterdir())


def test_a_killed_export_does_not_stand_in_the_way_of_the_next(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    network = nn.Linear(3, 3).eval()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert in_a_process(lambda: export(network, torch.zeros(2, 3), path)) == -signal.SIGTERM
    export(network, torch.zeros(2, 3), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
