"""Flower's niid_bench, of NIID-Bench's Table 3: global models on a central test set."""

from collections.abc import Mapping
from functools import partial

from reproduction.baselines.table import USUAL_ROWS, Published, Row, table_claims
from reproduction.runs import CONFIGS, Item, Paper, Place, data_options

PARTITIONS: Mapping[str, tuple[str, ...]] = {
    "dirichlet": (),
    "2_classes": ("--data.partition=ClassShards", "--data.partition.classes_per_client=2"),
    "iid": ("--data.partition=IID",),
}
SMALL = ("--data.sample_fraction=0.1", "--trainer.max_steps=20")  # a tenth of the samples

ROWS = (
    *USUAL_ROWS,
    Row("FedProx", "fedprox", "global"),
    # its steps have no momentum here; those of 0.9 go about ten times as far
    Row("SCAFFOLD", "scaffold", "global", ("--model.lr=0.1",)),
    Row("FedNova", "fednova", "global"),
)

PUBLISHED: Mapping[str, Mapping[str, Published]] = {
    "mnist-dirichlet": {
        "FedAvg": Published(98.89, 0.07),
        "SCAFFOLD": Published(99.07, 0.06),
        "FedProx": Published(99.02, 0.02),
        "FedNova": Published(98.03, 0.06),
    },
    "mnist-2_classes": {
        "FedAvg": Published(96.86, 0.30),
        "SCAFFOLD": Published(96.92, 0.52),
        "FedProx": Published(96.85, 0.15),
        "FedNova": Published(96.65, 0.39),
    },
    "fashion_mnist-dirichlet": {
        "FedAvg": Published(88.09, 0.29),
        "SCAFFOLD": Published(88.44, 0.25),
        "FedProx": Published(88.15, 0.42),
        "FedNova": Published(88.22, 0.12),
    },
    "fashion_mnist-2_classes": {
        "FedAvg": Published(78.10, 2.51),
        "SCAFFOLD": Published(33.80, 41.22),
        "FedProx": Published(78.05, 0.99),
        "FedNova": Published(71.67, 2.34),
    },
    "fashion_mnist-iid": {
        "FedAvg": Published(89.23, 0.45),
        "SCAFFOLD": Published(89.33, 0.27),
        "FedProx": Published(89.42, 0.09),
        "FedNova": Published(89.36, 0.09),
    },
}


def fit_options(place: Place) -> list[str]:
    """Options of ``pfl fit`` for all runs of a data set and a partition."""
    data, _, partition = place.pair.partition("-")
    file = f"--config={CONFIGS}/papers/niid_bench/{data}.yaml"
    small = SMALL if place.scale == "small" else ()
    return [file, *data_options(place.root, data), *PARTITIONS[partition], *small]


PAPER = Paper(
    {"table3": Item(partial(table_claims, rows=ROWS, published=PUBLISHED), tuple(PUBLISHED))},
    {"small": [1, 2, 3], "full": [1, 2, 3]},
    fit_options,
)
