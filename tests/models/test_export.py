"""Exported files are loaded back, and give what the network gives, for batches of other sizes too."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from pfl_lightning.errors import PflError
from pfl_lightning.models import MLP, CharGRU, LeNet5, TweetLSTM, ViT
from pfl_lightning.models.checks import two_inputs
from pfl_lightning.models.export import export


def outputs_of(path, make, inputs: torch.Tensor) -> torch.Tensor:
    """What the file gives, in its own way."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(inputs)
    if path.suffix == ".onnx":
        from onnx.reference import ReferenceEvaluator

        return torch.tensor(ReferenceEvaluator(str(path)).run(None, {"inputs": inputs.numpy()})[0])
    network = make().eval()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network(inputs)


class Choosy(nn.Linear):
    """Does what its inputs say, so that no program can hold it."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) if inputs.sum() > 0 else inputs


OLD = pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 has another onnxscript, and cannot trace a ViT")
ONNX = [
    OLD,
    pytest.mark.skipif(not find_spec("onnx"), reason="needs the extra onnx"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "suffix"),
    [
        (MLP, (1, 8, 8), ".pt"),
        (LeNet5, (3, 32, 32), ".pt2"),
        pytest.param(partial(ViT, depth=1), (3, 32, 32), ".pt2", marks=OLD),
        (CharGRU, (6, 20), ".pt2"),
        (TweetLSTM, (6, 20), ".pt2"),
        pytest.param(LeNet5, (3, 32, 32), ".onnx", marks=ONNX),
    ],
)
def test_a_file_gives_what_the_network_gives(kind, shape, suffix, tmp_path):
    network, path = kind(shape, 10).eval(), tmp_path / f"model{suffix}"
    export(network, two_inputs(shape, network.takes), path)
    for batch in (1, 5):
        inputs = torch.cat([two_inputs(shape, network.takes) for _ in range(3)])[:batch]
        found = outputs_of(path, lambda: kind(shape, 10), inputs)
        torch.testing.assert_close(found, network(inputs), rtol=1e-5, atol=1e-6)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_network_that_torch_cannot_trace_gets_a_line_and_leaves_no_file(tmp_path):
    with pytest.raises(PflError, match=r"torch cannot export Choosy for batches of any size; allowed: \.pt"):
        export(Choosy(3, 3).eval(), torch.zeros(2, 3), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
