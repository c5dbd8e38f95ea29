"""Networks of a user's own, and files of weights, that cannot be used: one line each, before anything is written.

A row has the words that choose the network, and words of the line.
"""

import os
from pathlib import Path

import pytest
import torch
from fakes import wrong_networks

OWN = "fakes.wrong_networks"
PATHS = "the import path of a torch module, or of a function of yours or torchvision's annotated to return one"


class Runs:
    """Leaves a file behind when it is unpickled without care."""

    def __reduce__(self):
        return os.mkdir, ("called",)


@pytest.fixture
def line_of(refused):
    """The line about a run that cannot start."""
    return lambda *words: refused("fit", "--data.num_clients=4", "--trainer.max_steps=1", *words)[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "Mapped",
            "model.network: Mapped must return a tensor of numbers [batch, 10], got a dict with logits, ",
        ),
        ("Broken", "model.network: Broken cannot be made: no luck today"),
        ("NoModule", f"model.network: {OWN}.NoModule is not possible; allowed: "),
        ("unannotated", f"model.network: {OWN}.unannotated is not possible; allowed: "),
        (
            "torch.fx.graph_module.reduce_graph_module",
            "model.network: torch.fx.graph_module.reduce",
        ),
        ("absent", f"model.network: {OWN}.absent is not possible: "),
        (
            "Net --model.head=fc",
            "model.head: fc is not possible; allowed: 1 to 1, or some of body, head, the layers of",
        ),
        ("Net --model.network.hidden=x", "model.network.hidden: x is not possible; allowed: a whole number"),
        (
            "Net --model.adapter=LoRA --model.adapter.rank=0",
            "model.adapter.rank: 0 is not possible; allowed: a whole num",
        ),
        (
            "Net --model.adapter=LoRA",
            "model.adapter.targets: *[aA]ttn*.*, *[aA]ttention*.* matches no linear layer of Net; allowed: patterns of",
        ),
        (
            "Net --model.adapter=LoRA --model.adapter.targets=head",
            "model.adapter.targets: head matches head of the head, which trains without adapters; allowed: ",
        ),
        ("annotated --model.network.hiden=3", "model.network.hiden: annotated has no such option; see --model.network"),
    ],
)
def test_a_network_that_cannot_be_trained_gets_one_line(words, line, line_of):
    found = line_of(*f"--model.network={'' if words.startswith('torch') else OWN + '.'}{words}".split())
    assert found.startswith(line)
    assert OWN not in line or found.endswith(PATHS)


def saved(content):
    return lambda: torch.save(content, "w.pt")


def cut_short():
    torch.save(good(), "w.pt")
    Path("w.pt").write_bytes(Path("w.pt").read_bytes()[:-100])


def changed():
    """One bit of a tensor is another."""
    torch.save(tensors := good(), "w.pt")
    data = bytearray(Path("w.pt").read_bytes())
    data[data.index(tensors["body.weight"].numpy().tobytes())] ^= 1
    Path("w.pt").write_bytes(data)


def good(hidden=4):
    return wrong_networks.Net((1, 8, 8), 10, hidden).state_dict()


REMEDY = "; write it with torch.save(module.state_dict(), file)"
CANNOT = "model.pretrained: cannot read 'w.pt' ("
WEIGHTS = {
    "absent": (lambda: None, CANNOT),
    "code": (saved({"body.weight": Runs()}), f"{CANNOT}not what torch.save writes, not complete, or not plain values"),
    "cut short": (cut_short, f"{CANNOT}not what torch.save writes, not complete, or not plain values and tensors)"),
    "changed": (changed, f"{CANNOT}it is damaged){REMEDY}"),
    "tensor": (saved(torch.zeros(3)), f"{CANNOT}a Tensor instead of tensors by name){REMEDY}"),
    "names": (saved({"fc.weight": torch.zeros(1)}), "model.pretrained: 'w.pt' has nothing for Net; allowed: a file"),
    "shape": (
        saved(good(5)),
        "model.pretrained: 'w.pt' has body.bias of torch.float32 (5,); allowed: torch.float32 (4",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_file_without_fitting_weights_gets_one_line(name, line_of):
    write, line = WEIGHTS[name]
    write()
    found = line_of(f"--model.network={OWN}.Net", "--model.pretrained=w.pt")
    assert found.startswith(line)
    assert not Path("called").exists()


def test_a_method_that_makes_its_own_start_takes_no_weights(line_of):
    line = line_of("--model=LinearFedRep", "--model.pretrained=w.pt")
    assert line.startswith("model.pretrained: LinearFedRep has no such option")
