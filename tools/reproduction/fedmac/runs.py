"""The runs behind FedMac's tables and figures: pairs of a data set and a network, with the rates of each method.

The runs of a pair share one folder, so that tables and figures which need the same ones train them once.
"""

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from reproduction.runs import CONFIGS, SCALES, Place, Scale, Sweep, data_options

METHODS = ("fedavg", "fedprox", "heurfedamp", "per-fedavg", "pfedme", "fedmac")
SEEDS: Mapping[Scale, Sequence[int]] = dict.fromkeys(SCALES, (1, 2, 3))
TIE = 0.075  # copy_lr * correlation of FedMac; of pFedMe's code

# rounds that take two CPU cores minutes; the convolutional nets see a part of the images
SMALL = {
    **dict.fromkeys(("mnist", "fashion_mnist", "synthetic"), "--trainer.max_steps=200"),
    "cifar100": "--trainer.max_steps=20 --trainer.val_check_interval=10",
    "cinic10": "--trainer.max_steps=4 --trainer.val_check_interval=2",
}

# pFedMe's code (arXiv:2006.08848) for FedAvg and Per-FedAvg; eta * lambda of FedMac is pFedMe's 0.075, as the paper
# wants. FedMac's rates for Synthetic and the MLR were chosen among 11 by their agreement with the paper's Table 2; see
# docs/evidence/fedmac.md.
USUAL = dict.fromkeys(("fedavg", "fedprox", "heurfedamp"), "lr=0.02")
IMAGES = {**USUAL, "pfedme": "lr=0.05", "fedmac": "lr=0.02 correlation=0.01 copy_lr=7.5"}
SYNTHETIC = {**USUAL, "pfedme": "lr=0.03", "fedmac": "lr=0.05 correlation=0.005 copy_lr=15"}
FASTER = dict.fromkeys(USUAL, "lr=0.03")
RATES: Mapping[str, Mapping[str, str]] = {
    "mnist_mlr": {**IMAGES, "per-fedavg": "inner_lr=0.03 lr=0.003"},
    "fashion_mnist_mlr": {**IMAGES, "per-fedavg": "inner_lr=0.03 lr=0.003"},
    "synthetic_mlr": {**SYNTHETIC, "per-fedavg": "inner_lr=0.02 lr=0.002"},
    "mnist_dnn": {**IMAGES, "per-fedavg": "inner_lr=0.02 lr=0.001"},
    "fashion_mnist_dnn": {**IMAGES, "per-fedavg": "inner_lr=0.02 lr=0.001"},
    "synthetic_dnn": {**SYNTHETIC, **FASTER, "per-fedavg": "inner_lr=0.01 lr=0.001"},
    "cifar100_vgg": {**IMAGES, "per-fedavg": "inner_lr=0.02 lr=0.001"},
    "cinic10_wrn": {**IMAGES, "per-fedavg": "inner_lr=0.02 lr=0.001"},
}


def fit_options(place: Place) -> list[str]:
    """Options of ``pfl fit`` for all runs of a pair."""
    data = place.pair.rpartition("_")[0]
    files = [f"--config={CONFIGS}/papers/fedmac/{data}.yaml"]
    if place.pair.endswith("_mlr"):
        files.append(f"--config={CONFIGS}/models/logistic.yaml")
    source = [] if data == "synthetic" else data_options(place.root, data)
    small = shlex.split(SMALL[data]) if place.scale == "small" else []
    return [*files, *source, *small]


def sweep(
    place: Place, method: str, vary: Mapping[str, Sequence[Any]] = MappingProxyType({}), options: Sequence[str] = ()
) -> Sweep:
    """Runs of a method with its rates for the pair, but for what varies."""
    rates = dict(rate.split("=") for rate in RATES[place.pair][method].split())
    own = [f"--model.{key}={value}" for key, value in rates.items()]
    return Sweep((method,), vary, [*own, *options])
