"""PFLlib's table of Fashion-MNIST: practical (Dirichlet) and pathological (2 classes a client) clients."""

from collections.abc import Mapping, Sequence

from reproduction.baselines.table import FINETUNED, USUAL_ROWS, Published, Row, table_claims
from reproduction.claims import Claim
from reproduction.runs import CONFIGS, Item, Paper, Place, Scale, data_options

PARTITIONS: Mapping[str, tuple[str, ...]] = {
    "dirichlet": (),
    "2_classes": ("--data.partition=GroupedShards", "--data.partition.classes_per_client=2"),
}
# half of the clients in each of 100 rounds; at the small scale with a quarter of their samples
HALF = ("--data.participation.pool_size=10", "--trainer.max_steps=100", "--trainer.val_check_interval=5")
CUTS: Mapping[Scale, Sequence[str]] = {"small": (*HALF, "--data.sample_fraction=0.25"), "two_cores": HALF, "full": ()}
TWO_CORES = (
    *USUAL_ROWS,
    Row("FedPer", "fedper", "stored"),
    Row("FedRep", "fedrep", "stored", ("--model.head_epochs=1",)),
    Row("Ditto", "ditto", "personal"),
    Row("FedALA", "fedala", "personal"),
    Row("FedProto", "fedproto", "stored"),
)
ROWS = (
    *TWO_CORES,
    Row("APFL", "apfl", "personal"),
    Row("FedProx", "fedprox", "global"),
    Row("Per-FedAvg", "per-fedavg", "adapted", ("--model.inner_lr=0.005",)),
    # five steps of 0.01 for each batch in PFLlib; one of 0.05 goes as far
    Row("pFedMe", "pfedme", "personal", ("--model.lr=0.05",)),
    Row("FedAMP", "fedamp", "personal"),
    Row("FedFomo", "fedfomo", "personal", ("--data.val_fraction=0.2",)),
    Row("FedRoD", "fedrod", "personal"),
    Row("FedBABU", "fedbabu", "finetuned", FINETUNED),
    Row("FedCP", "fedcp", "stored"),
    Row("GPFL", "gpfl", "stored"),
    Row("FedDBE", "feddbe", "stored"),
)

NUMBERS = {  # practical, pathological
    "FedAvg": (85.85, 80.41),
    "FedPer": (97.44, 99.47),
    "FedRep": (97.56, 99.56),
    "Ditto": (97.47, 99.44),
    "FedALA": (97.66, 99.57),
    "FedProto": (97.40, 99.49),
    "APFL": (97.25, 99.41),
    "FedProx": (85.63, 78.08),
    "Per-FedAvg": (95.10, 99.18),
    "pFedMe": (97.25, 99.35),
    "FedAMP": (97.20, 99.42),
    "FedFomo": (97.21, 99.46),
    "FedRoD": (97.52, 99.52),
    "FedBABU": (97.46, 99.41),
    "FedCP": (97.89, 99.66),
    "GPFL": (97.81, 99.85),
    "FedDBE": (97.69, 99.74),
}
PUBLISHED = {
    pair: {name: Published(numbers[column]) for name, numbers in NUMBERS.items()}
    for column, pair in enumerate(PARTITIONS)
}


def fit_options(place: Place) -> list[str]:
    """Options of ``pfl fit`` for all runs of a partition."""
    file = f"--config={CONFIGS}/papers/pfllib/fashion_mnist.yaml"
    data = data_options(place.root, "fashion_mnist")
    return [file, "--model.lr=0.005", *data, *PARTITIONS[place.pair], *CUTS[place.scale]]


def check(place: Place) -> list[Claim]:
    """The table of a partition; two cores bear some of its rows with all samples."""
    return table_claims(place, TWO_CORES if place.scale == "two_cores" else ROWS, PUBLISHED)


PAPER = Paper(
    {"fashion_mnist": Item(check, tuple(PARTITIONS), two_cores=("dirichlet",), scales=tuple(CUTS))},
    {"small": [1, 2, 3], "two_cores": [1], "full": [1, 2, 3]},
    fit_options,
)
