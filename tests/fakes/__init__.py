"""Stand-ins for tests: cohorts, methods, and tiny data sets in the real layouts of ``configs/data``."""

from collections.abc import Callable
from pathlib import Path

from fakes.agnews import write_agnews
from fakes.celeba import write_celeba
from fakes.cinic10 import write_cinic10
from fakes.domains import write_domainnet, write_office_caltech, write_pacs
from fakes.flowers102 import write_flowers102
from fakes.harbox import write_harbox
from fakes.heart_disease import write_heart_disease
from fakes.leaf import write_femnist, write_shakespeare
from fakes.libsvm import write_a9a
from fakes.medmnist import write_medmnist
from fakes.pamap2 import write_pamap2
from fakes.reddit import write_reddit
from fakes.sent140 import write_sent140
from fakes.svhn import write_svhn
from fakes.tcga_brca import write_tcga_brca
from fakes.tiny_imagenet import write_tiny_imagenet
from fakes.torchvision_data import write_random, write_writers
from fakes.ucihar import write_ucihar
from pfl_lightning import data

# by the name of the file in configs/data: writes enough samples for its clients below a folder, the run's data.root
WRITERS: dict[str, Callable[[Path], object]] = {
    "digits": lambda root: None,
    "cifar10": lambda root: write_random(data.CIFAR10, root),
    "cifar100": lambda root: write_random(data.CIFAR100, root),
    "cinic10": write_cinic10,
    "emnist": lambda root: write_random(data.EMNIST, root),
    "mnist": lambda root: write_random(data.MNIST, root),
    "mnist_writers": write_writers,
    "fashion_mnist": lambda root: write_random(data.FashionMNIST, root),
    "synthetic": lambda root: None,
    "linear_representation": lambda root: None,
    "harbox": write_harbox,
    "ucihar": write_ucihar,
    "pamap2": write_pamap2,
    "heart_disease": write_heart_disease,
    "tcga_brca": write_tcga_brca,
    "libsvm": lambda root: write_a9a(root.with_name("data")),  # its settings name the files
    "fcube": lambda root: None,
    "agnews": write_agnews,
    "sent140": write_sent140,
    "reddit": write_reddit,
    "femnist": write_femnist,
    "shakespeare": write_shakespeare,
    "shapes": lambda root: None,
    "shakespeare_sequences": write_shakespeare,
    "celeba": write_celeba,
    "domainnet": write_domainnet,
    "flowers102": write_flowers102,
    "medmnist": write_medmnist,
    "office_caltech": write_office_caltech,
    "pacs": write_pacs,
    "svhn": write_svhn,
    "tiny_imagenet": lambda root: write_tiny_imagenet(root, count=100, tested=60),
}
