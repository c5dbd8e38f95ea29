"""Flower's niid_bench: FedAvg of LeNet-5 on Fashion-MNIST, with 10 clients and 10 local epochs.

Each makes its own clients, of equal sizes (``iid``), and evaluates the global model on all test samples after every
round, which is counted. Flower has an actor with one thread on each core: with its default of four
cores a client, two cores would have none.
"""

import re
from itertools import pairwise
from pathlib import Path
from shutil import copytree

from peers.environments import TORCH, TORCHVISION, Peer
from peers.tracks.track import Track

ROUNDS = 4
PROGRESS = re.compile(r"fit progress: \((\d+), [^,]+, \{'accuracy': ([\d.]+)\}, ([\d.]+)\)")


def lay_out(checkout: Path, files: Path, folder: Path) -> Path:
    """Copy the program, and link our files where torchvision looks for them."""
    copytree(checkout / "baselines" / "niid_bench", folder / "niid_bench")
    (folder / "niid_bench" / "data").symlink_to(files.absolute())
    return folder / "niid_bench"


def read(text: str) -> tuple[list[float], float]:
    """Seconds between the ends of rounds, each of which is printed once or twice, and the last accuracy."""
    ends_of_rounds = {at: (float(accuracy), float(end)) for at, accuracy, end in PROGRESS.findall(text)}
    accuracies, ends = zip(*ends_of_rounds.values(), strict=True)
    return [end - begin for begin, end in pairwise(ends)], accuracies[-1]


TRACK = Track(
    library="Flower",
    data="fashion_mnist",
    entry="baselines/niid_bench/niid_bench/main.py",
    # its own pins of Flower and Hydra; that Ray does not say that it needs the last two
    peer=Peer(
        "niid_bench.py",
        ("flwr[simulation]==1.5.0", "hydra-core==1.3.2", TORCH, TORCHVISION, "tqdm", "setuptools<81", "async-timeout"),
    ),
    lay_out=lay_out,
    words=f"-m niid_bench.main dataset_name=fmnist partitioning=iid num_rounds={ROUNDS} client_resources.num_cpus=1",
    read=read,
    rounds=ROUNDS,
    environ={"OMP_NUM_THREADS": "1"},
    options=("--config=papers/niid_bench/fashion_mnist", "--data.partition=IID"),
)
