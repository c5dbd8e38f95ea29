"""FedMac's Table 4 and Figures 3 and 6: sparse models, how accurate they are, and the bits that they save."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from pfl_lightning.report import RunRecord
from pfl_lightning.report.compare_runs import LINK_BITS
from pfl_lightning.report.tables import markdown
from pfl_lightning.system.ledger import dense_bits
from reproduction.claims import Claim, Floats, about, first, paired, spread, trend
from reproduction.fedmac.accuracy import accuracy
from reproduction.fedmac.runs import sweep
from reproduction.runs import Place, Sweep, compare, publish, trained

METHODS = {"fedprox": "global", "per-fedavg": "adapted", "pfedme": "personal", "fedmac": "personal"}  # evaluated model
WEIGHT = 1e-3  # of Figure 3's smoothings
WEIGHTS = (WEIGHT, 3e-4, 1e-4)  # the paper's is lost
SMOOTHINGS = (1e-1, 1e-3)  # beside the default of 1e-2
DENSITY = "density/global/all/1e-03"
PRUNED = ("--model.sparsity.prune=true", "--trainer.callbacks+=SparsityTracker")
PAPER = {"fedprox": (74.38, 93.56, None), "per-fedavg": (83.56, None, 97.49), "pfedme": (71.62, 93.29, 97.40)}
PAPER["fedmac"] = (49.50, 95.08, 98.33)
PARAMETERS = 784 * 100 + 100 + 100 * 10 + 10  # of the DNN
SAVED, PRINTED = 0.55, "0.52"  # share of the dense bits, and where the paper's Figure 6 ends


class Sparse(NamedTuple):
    """Runs with sparse models, one value per seed.

    Attributes:
        density: Share of the entries of the shared model that are not zero at the end, in %, ``[seeds]``.
        shared: Best test accuracy of the shared model in % over all samples, as the paper reports it.
        own: The same of the personal models; None if there are none.
        bits: Bits over one link in the second half of the rounds, as a share of what dense models take.
    """

    density: Floats
    shared: Floats
    own: Floats | None
    bits: Floats


def sparse_sweep(place: Place, method: str, weights: Sequence[float] = (WEIGHT,), smoothing: float = 0.01) -> Sweep:
    """Runs of a method with the penalty and pruning."""
    vary = {"model.sparsity.weight": weights, "model.sparsity.smoothing": (smoothing,)}
    return sweep(place, method, vary, PRUNED)


def sparse(found: Sequence[RunRecord], model: str) -> Sparse:
    """What a table shows of some runs that differ in their seeds."""
    return Sparse(
        100 * np.array([list(run.logged[DENSITY].values())[-1] for run in found]),
        accuracy(found, "global").best,
        None if model == "global" else accuracy(found, model).best,
        np.array([_share_of_dense(run) for run in found]),
    )


def table4_claims(place: Place) -> list[Claim]:
    """Table 4 and Figure 6: at the same weight FedMac is the sparsest and the most accurate, and halves the bits."""
    claims = []
    for weight in WEIGHTS:
        sweeps = {method: sparse_sweep(place, method, (weight,)) for method in METHODS}
        found = trained(place, list(sweeps.values()))
        results = {method: sparse(found[sweeps[method].names[0]], model) for method, model in METHODS.items()}
        compare(place, chain.from_iterable(found.values()), f"table4_{weight}")
        show(place, f"table4_{weight}", results, PAPER)
        halved = [halves_the_bits(results["fedmac"])] if weight == WEIGHT else []  # where density ends at the floor
        claims += about(f"weight {weight}", [*best_of_all(results), *halved])
    return claims


def fig3_claims(place: Place) -> list[Claim]:
    """Figure 3: a larger weight means fewer non-zeros and a lower accuracy; the smoothing is only shown."""
    weights = sparse_sweep(place, "fedmac", WEIGHTS)
    smoothings = [sparse_sweep(place, "fedmac", smoothing=smoothing) for smoothing in SMOOTHINGS]
    found = trained(place, [weights, *smoothings])
    compare(place, chain.from_iterable(found.values()), "fig3")
    results = {name: sparse(each, "personal") for name, each in found.items()}
    show(place, "fig3", results, {})
    return list(monotone([results[name] for name in weights.names[::-1]]))


def best_of_all(results: Mapping[str, Sparse]) -> Iterator[Claim]:
    """What Table 4 claims."""
    for column, what in enumerate(("density of the shared model", "accuracy of the global model", "of the personal")):
        paper = {method: np.array([known]) for method, row in PAPER.items() if (known := row[column]) is not None}
        row = {method: values for method in paper if (values := results[method][column]) is not None}
        theirs = first(what, "fedmac", paper, least=column == 0).measured
        yield first(what, "fedmac", row, least=column == 0)._replace(printed=theirs)


def halves_the_bits(fedmac: Sparse) -> Claim:
    """What Figure 6 claims of the run whose density is kept at one half."""
    text, bits = "bits over a link in the second half of the rounds, as a share of dense ones", fedmac.bits
    return paired(text, spread(bits), f"below {SAVED}", SAVED - bits)._replace(printed=PRINTED)


def monotone(results: Sequence[Sparse]) -> Iterator[Claim]:
    """What Figure 3 claims, for growing weights."""
    for name, values in (
        ("density", [result.density for result in results]),
        ("accuracy of the global model", [result.shared for result in results]),
    ):
        yield trend(f"{name} (%) for the weights {', '.join(map(str, WEIGHTS[::-1]))}", values)


def show(place: Place, name: str, results: Mapping[str, Sparse], paper: Mapping[str, Sequence[float | None]]) -> None:
    """Print and write a table of all runs beside the paper's numbers."""
    columns = ["runs", "density", "global", "personal", "bits of a link"]
    rows = []
    for run, result in results.items():
        known = paper.get(run, (None, None, None))
        rows.append([run, *map(_beside, result[:3], known), spread(result.bits)])
    title = (
        f"{place.pair}: density of the shared model at the end (%), best micro test accuracies of the evaluations (%), "
        "as in the paper, whose numbers are in brackets, and bits over a link in the second half of the rounds, as a "
        "share of those of dense models."
    )
    publish(place, name, markdown(title, columns, rows))


def _beside(value: Floats | None, known: float | None) -> str:
    if value is None:
        return "-"
    return spread(value) + (f" ({known})" if known is not None else "")


def _share_of_dense(run: RunRecord) -> float:
    """Bits of the second half of the rounds by the paper's formula, as a share of what dense models take."""
    logged = [(0, 0.0), *run.logged[LINK_BITS].items()]
    rounds, bits = logged[-1]
    earlier, before = logged[(len(logged) - 1) // 2]
    return (bits - before) / (rounds - earlier) / (2 * dense_bits(PARAMETERS))
