"""HF-MAML beside FedAvg on CIFAR-10: with rates that validation samples chose, and as SRPFL's code computes it.

All runs leave a fifth of the training samples for validation, so that those which are searched are those compared.
"""

import shlex
from collections.abc import Mapping

import numpy as np

from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim, Floats
from reproduction.runs import Place, Sweep, found_runs, publish, tried
from reproduction.srpfl.figures import Panel, fit_options
from reproduction.srpfl.rates import accuracy_text, last_accuracy

ROUNDS = 12
MODELS = ("global", "adapted")
ADAPTED, ALIASED = (f"--model=reproduction.srpfl.aliased.{name}" for name in ("AdaptedFedAvg", "AliasedHFMAML"))
# beside HF-MAML, and what each is told: FedAvg at the rate by which SRPFL's code trains under either name, and at the
# one that its validation samples chose; its weight decay is that of its own runs
OTHERS: Mapping[str, str] = {
    "FedAvg at 0.01, 1 epoch": f"{ADAPTED} --model.lr=0.01 --model.weight_decay=1e-4",
    "FedAvg at 0.03, 1 epoch": f"{ADAPTED} --model.lr=0.03 --model.weight_decay=1e-4",
    "FedAvg at 0.01, 5 epochs": f"{ADAPTED} --model.lr=0.01 --model.weight_decay=1e-4 --model.epochs=5",
    "HF-MAML of SRPFL's code, 5 epochs": f"{ALIASED} --model.lr=0.1 --model.inner_lr=0.01 --model.epochs=5",
}
# beta, alpha, epochs and delta of HF-MAML: the first of all, and each other value by itself
GRID: Mapping[str, tuple[float, ...]] = {
    "lr": (0.03, 0.01, 0.1),
    "inner_lr": (0.01, 0.1),
    "epochs": (1, 5),
    "difference": (1e-3, 1e-2),
}


def compare_hf_maml(place: Place) -> list[Claim]:
    """Search HF-MAML's settings with the first seed, train the best of them and the others, and publish two tables."""
    first = place._replace(seeds=place.seeds[:1])
    searched = {point: scores(first, "hf-maml", sweep, "val") for point, sweep in points().items()}
    best = max(searched, key=lambda point: np.nan_to_num(searched[point]["adapted"]).mean())
    rows = {f"HF-MAML, {best}": scores(place, "hf-maml", points()[best], "test")}
    for name, told in OTHERS.items():
        rows[name] = scores(place, folder(name), Sweep(("fedavg",), options=shlex.split(told)), "test")
    publish(place, "hf_maml", f"{search_table(searched)}\n{comparison_table(rows)}")
    return []


def points() -> dict[str, Sweep]:
    """The points of the grid, by their settings; each differs from the first in one of them."""
    usual = {key: values[0] for key, values in GRID.items()}
    grid = [usual, *(usual | {key: value} for key, values in GRID.items() for value in values[1:])]
    return {
        ", ".join(f"{key} {value:g}" for key, value in point.items()): Sweep(
            ("hf-maml",), {f"model.{key}": (f"{value:g}",) for key, value in point.items()}
        )
        for point in grid
    }


def scores(place: Place, where: str, sweep: Sweep, split: str) -> dict[str, Floats]:
    """Train, and read the mean accuracy of the clients in % after the last round, nan for a stopped run, ``[seeds]``.

    Args:
        place: Where the figures of SRPFL are.
        where: Name of the folder around the runs.
        sweep: The runs.
        split: Samples on which the clients are evaluated.

    Returns:
        The accuracies by evaluated model.
    """
    short = f"--data.val_fraction=0.2 --trainer.max_steps={ROUNDS} --trainer.val_check_interval={ROUNDS}"
    options = [*fit_options("fig3", Panel("cifar10"), "small", place.root), *shlex.split(short)]
    trials = place._replace(folder=place.folder / where, options=options)
    tried(trials, sweep)
    runs = found_runs(trials, sweep.names[0])
    return {model: np.array([last_accuracy(run, model, split) for run in runs]) for model in MODELS}


def folder(name: str) -> str:
    """The name of a row as that of a folder."""
    return name.lower().replace(",", "").replace("'", "").replace(" ", "_")


def search_table(searched: Mapping[str, Mapping[str, Floats]]) -> str:
    """The grid of HF-MAML on validation samples."""
    title = f"HF-MAML: validation accuracy (%) after {ROUNDS} rounds, first seed; '-' is a run that was stopped"
    rows = [[name, *cells(found)] for name, found in searched.items()]
    return markdown(title, ["beta (lr), alpha (inner_lr), epochs, delta (difference)", *MODELS], rows)


def comparison_table(rows: Mapping[str, Mapping[str, Floats]]) -> str:
    """Everything on test samples, over the seeds."""
    title = f"CIFAR-10: test accuracy (%) after {ROUNDS} rounds, mean and standard deviation over the seeds"
    return markdown(title, ["method", *MODELS], [[name, *cells(found)] for name, found in rows.items()])


def cells(found: Mapping[str, Floats]) -> list[str]:
    """The accuracies of both models."""
    return [accuracy_text(found[model]) for model in MODELS]
