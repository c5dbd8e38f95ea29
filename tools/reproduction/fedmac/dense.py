"""FedMac's Figures 2 and 4 without sparsity, and how the models grow with the correlation."""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np

from pfl_lightning.report import RunRecord
from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim, Floats, better, listed, ours, paired, spread
from reproduction.fedmac.accuracy import ROWS, accuracy
from reproduction.fedmac.runs import METHODS, TIE, sweep
from reproduction.runs import Place, compare, publish, trained

STEPS, SERVER_RATES, CORRELATIONS = (5, 10, 20, 40), (1, 2, 4), (0.0025, 0.005, 0.01, 0.02, 0.05)
GROWING, GROWING_LR = (0.01, 0.03, 0.05, 0.1, 0.3), 0.01
GAPS = {  # points by which FedMac's personal models exceed others in the paper's Figure 4
    ("fedmac", "global"): 1.79,
    ("pfedme", "personal"): 0.55,
    ("pfedme", "global"): 2.29,
    ("per-fedavg", "adapted"): 0.75,
    ("heurfedamp", "personal"): 0.13,
    ("fedprox", "global"): 1.96,
    ("fedavg", "global"): 1.92,
}


def fig4_claims(place: Place) -> list[Claim]:
    """Figure 4: FedMac's personal models are better than all others, at the best round of each."""
    found = trained(place, [sweep(place, method) for method in METHODS])
    compare(place, chain.from_iterable(found.values()), "fig4")
    scores = {row: accuracy(found[row[0]], row[1]).best for row in ROWS}
    own = scores["fedmac", "personal"]
    return [
        paired(
            f"best accuracy of FedMac's personal models minus {' '.join(row)} (points)",
            spread(own - scores[row]),
            "above 0",
            own - scores[row],
        )._replace(printed=f"{gap:.2f}")
        for row, gap in GAPS.items()
    ]


def fig2_claims(place: Place) -> list[Claim]:
    """Figure 2: local steps, the server's rate, and the correlation, whose product with the copy's rate stays."""
    steps = sweep(place, "fedmac", {"model.epochs": STEPS})
    rates = sweep(place, "fedmac", {"model.server_optimizer.lr": SERVER_RATES}, ["--model.server_optimizer=SGD"])
    ties = [sweep(place, "fedmac", tied(each)) for each in CORRELATIONS]
    found = trained(place, [steps, rates, *ties])
    for name, row in {"steps": [steps], "rates": [rates], "correlations": ties}.items():  # each has the usual settings
        compare(place, chain.from_iterable(found[run] for each in row for run in each.names), f"fig2_{name}")
    show(place, "fig2", found)
    common, own = (best(found, rates.names, model) for model in ("global", "personal"))
    quality = best(found, [each.names[0] for each in ties], "personal")
    stable = CORRELATIONS.index(0.01)  # growth exponent of 3.2 in 800 rounds
    return [
        better(
            f"best global model (%), server rates {SERVER_RATES[::-2]}", common[-1], common[0], "the first is better"
        ),
        better(f"best personal models (%), server rates {SERVER_RATES[::2]}", own[0], own[-1], "the first is better"),
        paired(
            f"best accuracy of personal models (%) for correlations {CORRELATIONS}",
            listed(quality),
            f"rises up to {CORRELATIONS[stable]}",
            *(after - before for before, after in pairwise(quality[: stable + 1])),
        ),
    ]


def stability_claims(place: Place) -> list[Claim]:
    """A large product of correlation, learning rate and steps ruins the global model: a check of our own.

    Derivation: docs/evidence/derivations.md, FedMac.
    """
    sweeps = [sweep(place, "fedmac", {"model.lr": (GROWING_LR,), **tied(each)}) for each in GROWING]
    found = trained(place, sweeps)
    show(place, "stability", found)
    last = [accuracy(found[each.names[0]], "global").micro[:, -1] for each in sweeps]
    text = f"last accuracy of the global model (%) for correlations {GROWING}"
    usual = max(last[:2], key=np.mean)
    return ours([paired(text, listed(last), "falls for the last two", last[-2] - last[-1], usual - last[-2])])


def tied(correlation: float) -> dict[str, tuple[float]]:
    """A correlation, and the rate of the copy with which their product is the usual one."""
    return {"model.correlation": (correlation,), "model.copy_lr": (round(TIE / correlation, 4),)}


def best(found: Mapping[str, Sequence[RunRecord]], names: Sequence[str], model: str) -> list[Floats]:
    """Best accuracy of a model for some folders of runs, ``[seeds]`` each."""
    return [accuracy(found[name], model).best for name in names]


def show(place: Place, name: str, found: Mapping[str, Sequence[RunRecord]]) -> None:
    """Print and write a table of the accuracies of FedMac's runs."""
    rows = []
    for run, each in found.items():
        cells = [accuracy(each, model) for model in ("global", "personal")]
        rows.append([run, *(spread(values) for cell in cells for values in (cell.best, cell.micro[:, -1]))])
    columns = ["runs", "global, best", "global, last", "personal, best", "personal, last"]
    title = f"{place.pair}: micro test accuracy (%), best of the evaluations and at the end"
    publish(place, name, markdown(title, columns, rows))
