"""PFLlib: FedAvg of its CNN on Fashion-MNIST, with all 20 clients in every round.

Both have the same clients. PFLlib leaves out a client's last batch where it is not full. It evaluates before its first
round and before one more than it was asked for, which are not counted.
"""

import re
from pathlib import Path
from shutil import copytree

import numpy as np
import torch
from plain_methods import samples_of
from reproduction.runs import split_data

from peers.environments import TORCH, TORCHVISION, Peer
from peers.tracks.track import Track
from pfl_lightning.data import FederatedDataModule

SETTINGS = "--config=papers/pfllib/fashion_mnist"
ROUNDS = 4
RATE = 0.005  # PFLlib's
DEPENDENCIES = ("numpy", "scikit-learn", "h5py", "cvxpy", "calmsize", "matplotlib")
SECONDS = re.compile(r"time cost [- ]*([\d.]+)")
ACCURACY = re.compile(r"Averaged Test Accuracy: ([\d.]+)")


def lay_out(checkout: Path, files: Path, folder: Path) -> Path:
    """Copy the program, and write our clients where it looks for them."""
    copytree(checkout / "system", folder / "system")
    write_clients(split_data([SETTINGS, f"--data.root={files}"]), folder / "dataset" / "FashionMNIST")
    return folder / "system"


def write_clients(data: FederatedDataModule, folder: Path) -> None:
    """Write the clients in PFLlib's files: ``train/0.npz`` and so on."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        table = data.tables[split]
        for client in range(len(table)):
            inputs, targets = samples_of(table.examples(torch.tensor([client])))
            samples = np.array({"x": inputs.numpy(), "y": targets.numpy()}, dtype=object)
            np.savez_compressed(folder / split / f"{client}.npz", data=samples)


def read(text: str) -> tuple[list[float], float]:
    """Seconds of rounds 2 to the last, which are printed, and the last accuracy."""
    return [float(seconds) for seconds in SECONDS.findall(text)[1:ROUNDS]], float(ACCURACY.findall(text)[-1])


TRACK = Track(
    library="PFLlib",
    data="fashion_mnist",
    entry="system/main.py",
    peer=Peer("pfllib.py", (TORCH, TORCHVISION, *DEPENDENCIES)),
    lay_out=lay_out,
    words=f"main.py -data FashionMNIST -m CNN -algo FedAvg -lr {RATE} -gr {ROUNDS} -eg {ROUNDS} -dev cpu",
    read=read,
    rounds=ROUNDS,
    options=(
        SETTINGS,
        f"--model.local.lr={RATE}",
        f"--trainer.val_check_interval={ROUNDS}",
    ),
)
