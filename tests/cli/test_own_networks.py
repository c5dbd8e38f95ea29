"""Networks that are none of ours, from the command line to the loaded method."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from fakes.torchvision_data import write_random
from fakes.wrong_networks import Net, annotated
from torchvision.models import mobilenet_v3_small

from pfl_lightning import load_method
from pfl_lightning.cli import main
from pfl_lightning.data import CIFAR10
from pfl_lightning.errors import PflError

FUNCTION = "fakes.wrong_networks.annotated"
TINY = ["--data.num_clients=4", "--data.max_samples=5", "--model.eval_epochs=0", "--trainer.max_steps=1"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pfl"])


def trained(*words):
    """The newest checkpoint of a run."""
    main(["fit", *TINY, "--trainer.enable_progress_bar=false", *words])
    return max(Path().rglob("last.ckpt"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.filterwarnings("ignore:.*not the official data set")
@pytest.mark.parametrize("method", ["FedAvg", "FedRep"])
def test_a_network_of_torchvision_trains_from_a_file_with_its_options(method, capsys):
    write_random(CIFAR10, Path("data"))
    torch.manual_seed(1)
    torch.save(weights := mobilenet_v3_small(num_classes=1000).state_dict(), "weights.pt")
    words = [f"--model={method}", "--data=CIFAR10", "--data.root=data", "--model.lr=1e-9", "--model.weight_decay=0"]
    words += ["--model.network=torchvision.models.mobilenet_v3_small", "--model.network.dropout=0.4"]
    found = load_method(trained(*words, "--model.pretrained=weights.pt"))
    told = "242 of the 244 tensors of MobileNetV3 are from 'weights.pt'; new: classifier.3.weight, classifier.3.bias"
    assert told in capsys.readouterr().err
    module = found.network.module_with(found.network.state_dict())
    assert module.classifier[2].p == 0.4
    assert module.classifier[3].out_features == 10
    for name, parameter in module.named_parameters():  # the rate is as good as zero
        assert "classifier.3" in name or torch.allclose(parameter, weights[name], atol=1e-5), name


def test_the_checkpoint_of_a_users_function_is_loaded_with_that_function_alone():
    path = trained(f"--model.network={FUNCTION}", "--model.network.hidden=6")
    with pytest.raises(PflError, match=rf"model\.network.*{FUNCTION.replace('.', '[.]')}"):
        load_method(path)
    method = load_method(path, network=partial(annotated, hidden=6))
    assert method.network.body.out_features == 6
    assert isinstance(method.client(2), Net), "the user's own class"
    with pytest.raises(PflError, match="state_dict"):
        load_method(path, network=annotated)
