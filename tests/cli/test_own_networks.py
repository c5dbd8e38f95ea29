"""Networks that are none of ours, from the command line to the loaded method."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.torchvision_data import write_random
from fakes.wrong_networks import Net, annotated
from torchvision.models import VisionTransformer, mobilenet_v3_small

from pfl_lightning import Experiment, load_method
from pfl_lightning.cli import main
from pfl_lightning.data import CIFAR10, Arrays
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg

FUNCTION = "fakes.wrong_networks.annotated"
TINY = ["--data.num_clients=4", "--data.max_samples=5", "--model.eval_epochs=0", "--trainer.max_steps=1"]


pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def trained(*words):
    """The newest checkpoint of a run."""
    main(["fit", *TINY, "--trainer.enable_progress_bar=false", *words])
    return max(Path().rglob("last.ckpt"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not the official data set")
@pytest.mark.parametrize("method", ["FedAvg", "FedRep"])
def test_a_network_of_torchvision_trains_from_a_file_with_its_options(method, capsys):
    write_random(CIFAR10, Path("data"))
    torch.manual_seed(1)
    torch.save(weights := mobilenet_v3_small(num_classes=1000).state_dict(), "weights.pt")
    words = [
        f"--model={method}",
        "--data=CIFAR10",
        "--data.root=data",
        "--model.local.lr=1e-9",
        "--model.local.weight_decay=0",
    ]
    words += ["--model.network=torchvision.models.mobilenet_v3_small", "--model.network.dropout=0.4"]
    loaded = load_method(trained(*words, "--model.pretrained=weights.pt"))
    line = "242 of the 244 tensors of MobileNetV3 are from 'weights.pt'; new: classifier.3.weight, classifier.3.bias"
    assert line in capsys.readouterr().err
    module = loaded.network.module_with(loaded.network.state_dict())
    assert module.classifier[2].p == 0.4
    assert module.classifier[3].out_features == 10
    for name, parameter in module.named_parameters():  # the rate is as good as zero
        assert "classifier.3" in name or torch.allclose(parameter, weights[name], atol=1e-5), name


@pytest.mark.slow
def test_a_vision_transformer_trains_in_one_run_without_a_word_of_torch(capsys):
    images = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 3), np.uint8)
    np.savez("mine.npz", inputs=images, targets=np.arange(80) % 2)
    sizes = {"image_size": 8, "patch_size": 4, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    words = ["--model=FedAvg", "--model.backend=batched", "--data=Arrays", "--data.file=mine.npz"]
    words += ["--model.network=torchvision.models.vision_transformer.VisionTransformer"]
    network = load_method(trained(*words, *(f"--model.network.{name}={size}" for name, size in sizes.items()))).network
    assert network.kind == "VisionTransformer"
    assert network.module_with(network.state_dict()).encoder.ln.eps == 1e-6, "its own default, not that of LayerNorm"
    assert "warning" not in capsys.readouterr().err
    method = FedAvg(network=partial(VisionTransformer, **sizes), backend="batched", eval_epochs=0)
    Experiment(method, Arrays("mine.npz", num_clients=4), rounds=1).fit()  # a warning would be an error


def test_the_checkpoint_of_a_users_function_is_loaded_with_that_function_alone():
    path = trained(f"--model.network={FUNCTION}", "--model.network.hidden=6")
    with pytest.raises(PflError, match=rf"model\.network.*{FUNCTION.replace('.', '[.]')}"):
        load_method(path)
    method = load_method(path, network=partial(annotated, hidden=6))
    assert method.network.body.out_features == 6
    assert isinstance(method.client(2), Net), "the user's own class"
    with pytest.raises(PflError, match="state_dict"):
        load_method(path, network=annotated)
