"""FLUTE: FedAvg of logistic regression on MNIST, 1,000 clients with two digits each, ten of them in each round.

Its README times this command of 100 rounds with Gloo on a CPU, and Flower with the same work. The clients are ours; the
published ones, by a power law, are of other sizes. Both evaluate in every twentieth round.
"""

import json
import re
from pathlib import Path
from shutil import copytree
from zipfile import ZipFile

import torch
from plain_methods import samples_of
from reproduction.runs import split_data
from torch import nn

from peers.environments import NUMPY, TORCH, Peer
from peers.tracks.track import Track

ROUNDS = 100
CLIENTS = ["--data=MNIST", "--data.num_clients=1000", "--data.val_fraction=0"]
SHARDS = ["--data.partition=ClassShards", "--data.partition.classes_per_client=2"]
DATA = [*CLIENTS, *SHARDS, "--data.test_fraction=0.15", "--data.normalize=pixels"]
IMPORTED = ("cerberus", "easydict", "h5py", "pandas", "psutil", "scikit-learn", "scipy", "transformers", "wget")
SECONDS = re.compile(r"^secsPerRoundTotal: ([\d.]+)", re.MULTILINE)
ACCURACY = re.compile(r"^Test acc: ([\d.]+)", re.MULTILINE)
# in the place of Azure's client, which is installed for its log alone
LOG = """
class Run:
    id = "offline-run-of-ours"
    @classmethod
    def get_context(cls):
        return cls()
    def log(self, name, value, **others):
        print(f"{name}: {value}", flush=True)
"""


class SigmoidRegression(nn.Sequential):
    """The network of the command: cross-entropy takes the outputs of sigmoids."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 10), nn.Sigmoid())


def lay_out(checkout: Path, files: Path, folder: Path) -> Path:
    """Copy the program, and write our clients where it unpacks what it downloads: each process does, which fails."""
    place = folder / "flute"
    copytree(checkout, place)
    (place / "azureml" / "core").mkdir(parents=True)
    (place / "azureml" / "core" / "__init__.py").write_text(LOG)
    data = split_data([*DATA, f"--data.root={files}"])
    for split in ("train", "test"):
        table = data.tables[split]
        clients = {f"{client}": samples_of(table.examples(torch.tensor([client]))) for client in range(len(table))}
        (place / "data" / "MNIST" / split).mkdir(parents=True)
        with (place / "data" / "MNIST" / split / "all.json").open("w") as file:
            sizes = [len(targets) for _, targets in clients.values()]
            file.write(f'{{"users": {json.dumps([*clients])}, "num_samples": {sizes}, "user_data": {{')
            for number, (name, (inputs, targets)) in enumerate(clients.items()):
                samples = {"x": inputs.flatten(1).tolist(), "y": targets.tolist()}
                file.write(f'{", " if number else ""}"{name}": {json.dumps(samples)}')
            file.write("}}")
    ZipFile(place / "data" / "MNIST.zip", "w").close()
    return place


def read(text: str) -> tuple[list[float], float]:
    """Seconds of all rounds but the first, and the last accuracy."""
    return [float(seconds) for seconds in SECONDS.findall(text)[1:]], float(ACCURACY.findall(text)[-1])


TRACK = Track(
    library="FLUTE",
    data="mnist",
    entry="e2e_trainer.py",
    peer=Peer("flute.py", (TORCH, NUMPY, *IMPORTED)),
    lay_out=lay_out,
    words="-m torch.distributed.run --nproc_per_node=2 e2e_trainer.py -dataPath data -outputPath out "
    "-config experiments/cv_lr_mnist/config.yaml -task cv_lr_mnist -backend gloo",
    read=read,
    rounds=ROUNDS,
    options=(
        "--config=data/mnist",
        *DATA,
        "--data.participation.pool_size=10",
        "--model.network=peers.tracks.flute.SigmoidRegression",
        "--model.local.lr=0.03",
        "--trainer.val_check_interval=20",
    ),
)
