"""pfl-research: FedAvg of a CNN on CIFAR-10, with cohorts of 50 clients, each with 50 images and batches of 10.

Each makes its own clients, of equal sizes and alike (``cifar10_iid``), and draws its own cohorts. pfl-research measures
the clients before and after they train in every tenth round, which is not counted.
"""

import pickle
import re
from pathlib import Path
from shutil import copytree

import numpy as np
from torch import nn

from peers.environments import NUMPY, TORCH, TORCHVISION, Peer
from peers.tracks.track import Track
from pfl_lightning.data import CIFAR10

CLIENTS = 200  # they have the 10,000 images that are at hand
COHORT = 50
ROUNDS = 11
ACCURACY = re.compile(r"Central val \| accuracy +: ([\d.]+)")
SECONDS = re.compile(r"Duration of iteration \(s\) +: ([\d.]+)")


class SimpleCNN(nn.Sequential):
    """The network of the benchmark, with its first weights: Glorot's, uniform."""

    def __init__(self) -> None:
        convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
        dense = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5)]
        layers = [*convolutions, *dense, nn.Linear(128, 10)]
        super().__init__(*layers)
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)


def lay_out(checkout: Path, files: Path, folder: Path) -> Path:
    """Copy the program, and write our images in its files."""
    copytree(checkout / "benchmarks", folder / "benchmarks")
    written = folder / "benchmarks" / "data" / "cifar10"
    written.mkdir(parents=True)
    data = CIFAR10(root=str(files))
    for train, name in ((True, "train"), (False, "test")):
        images, labels = data.read(train)
        arrays = (images.permute(0, 2, 3, 1).numpy(), labels.numpy()[:, np.newaxis])
        (written / f"cifar10_{name}.p").write_bytes(pickle.dumps(arrays))
    return folder / "benchmarks"


def read(text: str) -> tuple[list[float], float]:
    """Seconds of the rounds between the first and the last, and the last accuracy."""
    return [float(seconds) for seconds in SECONDS.findall(text)[1 : ROUNDS - 1]], float(ACCURACY.findall(text)[-1])


TRACK = Track(
    library="pfl-research",
    data="cifar10",
    entry="benchmarks/image_classification/pytorch/train.py",
    peer=Peer("pfl_research_track.py", ("pfl[pytorch]==0.6.0", TORCH, TORCHVISION, NUMPY, "pyyaml")),
    lay_out=lay_out,
    words="image_classification/pytorch/train.py --args_config image_classification/configs/baseline.yaml "
    f"--central_num_iterations {ROUNDS}",
    read=read,
    rounds=ROUNDS,
    options=(
        "--config=data/cifar10",
        "--data.augment=false",
        "--data.max_samples=null",
        "--data.val_fraction=0",
        f"--data.num_clients={CLIENTS}",
        "--data.partition=IID",
        f"--data.participation.pool_size={COHORT}",
        "--model.network=peers.tracks.pfl_research.SimpleCNN",
        "--model.local.lr=0.1",
        "--model.local.weight_decay=0",
        f"--trainer.val_check_interval={ROUNDS}",
    ),
)
