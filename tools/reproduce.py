"""Runs the experiments behind a table or figure of a paper and checks the paper's claims about it.

Examples: ``python tools/reproduce.py srpfl fig3 --scale small --root DIR`` and ``python tools/reproduce.py delta_fl
table2 --root DIR``; DIR holds one folder of files for each data set, such as ``DIR/cifar10``. Finished runs are kept in
``--out`` and not repeated; an interrupted command resumes.
"""

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Literal

from jsonargparse import auto_cli
from reproduction.claims import Claim, show
from reproduction.delta_fl import runs
from reproduction.delta_fl.devices import TABLE, device_claims
from reproduction.delta_fl.figures import FIGURES as DELTA_FL
from reproduction.delta_fl.figures import FigureName as DeltaFLName
from reproduction.delta_fl.figures import figure_claims as delta_fl_figure_claims
from reproduction.delta_fl.search import search
from reproduction.delta_fl.toy import toy_claims
from reproduction.deprl.items import ItemName as DePRLItem
from reproduction.deprl.items import data_of as deprl_data
from reproduction.deprl.items import item_claims as deprl_item_claims
from reproduction.deprl.runs import SEEDS as DEPRL_SEEDS
from reproduction.deprl.runs import DataName
from reproduction.fedmac.figures import ITEMS as FEDMAC
from reproduction.fedmac.figures import ItemName as FedMacItem
from reproduction.fedmac.figures import item_claims as fedmac_item_claims
from reproduction.fedmac.recovery import recovery_claims
from reproduction.fedmac.runs import SEEDS as FEDMAC_SEEDS
from reproduction.fedmac.runs import PairName as FedMacPair
from reproduction.runs import Place, Scale
from reproduction.srpfl.figures import SEEDS, FigureName, Study, figure_claims
from reproduction.srpfl.hf_maml import compare_hf_maml
from reproduction.srpfl.linear_claims import linear_claims
from reproduction.srpfl.rates import ROUNDS, search_rates

from pfl_lightning.cli.console import complain, keep_quiet
from pfl_lightning.errors import PflError

DeltaFLItem = Literal[DeltaFLName, "table1", "fig3", "search"]


def srpfl(
    figure: Literal[FigureName, "linear", "rates", "hf_maml"],
    scale: Scale = "small",
    root: Path = Path("data"),
    out: Path = Path("reproduce"),
    seeds: list[int] | None = None,
    jobs: int = 1,
    json: Path | None = None,
) -> None:
    """Run the experiments of a figure of SRPFL and check its claims; the exit code is 1 if one fails.

    Args:
        figure: Which figure; ``linear`` stands for the numerical experiments of the theory. ``rates`` tries learning
            rates on validation samples, ``hf_maml`` compares HF-MAML with what the authors' code computes; both only at
            small scale.
        scale: ``small`` runs on two CPU cores, ``full`` is the paper's setting.
        root: Folder with a folder of files for each data set.
        out: Folder for runs and figures.
        seeds: Seeds to run; by default 10, 20 and 30 at small scale, the paper's 10, 20, 30 and 40 at full scale.
        jobs: Number of runs at the same time.
        json: File to which one record per claim is written.
    """
    keep_quiet()
    study = Study(scale, root, out, seeds or SEEDS[scale], jobs)
    if figure in ("rates", "hf_maml") and scale != "small":
        complain(f"scale: {scale} is not possible for {figure}; allowed: small")
        raise SystemExit(2)
    study.folder(figure).mkdir(parents=True, exist_ok=True)
    if figure == "rates" or figure == "hf_maml":
        return srpfl_search(figure, study)
    if figure == "linear":
        claims = linear_claims(figure=study.folder(figure) / "linear.png")
    else:
        claims = figure_claims(figure, study)
    return finish(claims, json)


def delta_fl(
    figure: DeltaFLItem,
    scale: Scale = "small",
    root: Path = Path("data"),
    out: Path = Path("reproduce"),
    pairs: list[runs.PairName] | None = None,
    seeds: list[int] | None = None,
    jobs: int = 1,
    json: Path | None = None,
) -> None:
    """Run the experiments of a table or figure of Delta-FL and check its claims; the exit code is 1 if one fails.

    Args:
        figure: Which table or figure. ``table2`` stands for Table 3 and Figures 4 to 15 too, which show the same runs;
            ``search`` tries learning rates on validation devices.
        scale: ``small`` runs on two CPU cores, ``full`` is the paper's setting.
        root: Folder with a folder of files for each data set.
        out: Folder for runs and figures.
        pairs: Pairs of data and network; by default all that the figure has.
        seeds: Seeds to run; by default 1 to 3 at small scale, the paper's 1 to 5 at full scale, and 1 for a search.
        jobs: Number of runs at the same time.
        json: File to which one record per claim is written.
    """
    keep_quiet()
    possible = pairs_of(figure)
    check_names("pairs", pairs, possible, figure)
    usual = [1] if figure == "search" else runs.SEEDS[scale]
    places = [
        Place(pair, scale, root, out / f"delta_fl-{pair}-{scale}", seeds or usual, jobs) for pair in pairs or possible
    ]
    try:
        claims = delta_fl_claims(figure, places, out)
    except PflError as error:
        complain(str(error))
        raise SystemExit(2) from error
    finish(claims, json)


def fedmac(
    figure: Literal[FedMacItem, "fig1"],
    scale: Scale = "small",
    root: Path = Path("data"),
    out: Path = Path("reproduce"),
    pairs: list[FedMacPair] | None = None,
    seeds: list[int] | None = None,
    jobs: int = 1,
    json: Path | None = None,
) -> None:
    """Run the experiments of a table or figure of FedMac and check its claims; the exit code is 1 if one fails.

    Args:
        figure: Which table or figure. ``fig1`` is the sparse recovery of the paper's Theorem 3, ``stability`` how the
            models grow with the correlation; ``search`` tries learning rates on validation samples.
        scale: ``small`` has fewer rounds, ``full`` is the paper's setting as far as it is known.
        root: Folder with a folder of files for each data set.
        out: Folder for runs and figures.
        pairs: Pairs of data and network; by default all of the table or figure.
        seeds: Seeds to run; 1 to 3 by default.
        jobs: Number of runs at the same time.
        json: File to which one record per claim is written.
    """
    keep_quiet()
    possible = FEDMAC[figure].pairs if figure != "fig1" else ()
    check_names("pairs", pairs, possible, figure)
    if figure == "fig1":
        out.mkdir(parents=True, exist_ok=True)
        return finish(recovery_claims(out / "fedmac-recovery.png"), json)
    claims: list[Claim] = []
    for pair in pairs or possible:
        place = Place(pair, scale, root, out / f"fedmac-{pair}-{scale}", seeds or FEDMAC_SEEDS, jobs)
        claims += [claim._replace(claim=f"{pair}: {claim.claim}") for claim in fedmac_item_claims(figure, place)]
    return finish(claims, json)


def deprl(
    item: DePRLItem,
    scale: Scale = "small",
    root: Path = Path("data"),
    out: Path = Path("reproduce"),
    data: list[DataName] | None = None,
    seeds: list[int] | None = None,
    jobs: int = 1,
    json: Path | None = None,
) -> None:
    """Run the experiments of a table or figure of DePRL and check its claims; the exit code is 1 if one fails.

    Args:
        item: Which table or figure. ``fig4`` is drawn from Table 9, and ``fig10`` stands for Figure 11 too.
        scale: ``small`` has few clients, small networks and few rounds, ``full`` is the paper's setting.
        root: Folder with a folder of files for each data set.
        out: Folder for runs and figures.
        data: Data sets; by default all of the table or figure.
        seeds: Seeds to run; by default 1 to 3 at small scale, the paper's 1, 12, 123 and 1234 at full scale.
        jobs: Number of runs at the same time.
        json: File to which one record per claim is written.
    """
    keep_quiet()
    possible = deprl_data(item, scale)
    check_names("data", data, possible, f"{item} at {scale} scale")
    claims: list[Claim] = []
    try:
        for name in data or possible:
            place = Place(name, scale, root, out / f"deprl-{name}-{scale}", seeds or DEPRL_SEEDS[scale], jobs)
            claims += [claim._replace(claim=f"{name}: {claim.claim}") for claim in deprl_item_claims(item, place)]
    except PflError as error:
        complain(str(error))
        raise SystemExit(2) from error
    finish(claims, json)


def check_names(key: str, names: Sequence[str] | None, possible: Sequence[str], where: str) -> None:
    """Answer names that a table or figure does not have with one line and exit code 2."""
    if wrong := [name for name in names or () if name not in possible]:
        complain(f"{key}: {wrong[0]} is not possible for {where}; allowed: {', '.join(possible) or 'none'}")
        raise SystemExit(2)


def srpfl_search(figure: Literal["rates", "hf_maml"], study: Study) -> None:
    """Run an experiment that makes no claims."""
    scale, root, _, seeds, jobs = study
    folder = study.folder(figure)
    if figure == "rates":
        search_rates([Place(data, scale, root, folder / data, seeds, jobs) for data in ROUNDS])
    else:
        compare_hf_maml(Place("cifar10", scale, root, folder, seeds, jobs))


def delta_fl_claims(figure: DeltaFLItem, places: Sequence[Place], out: Path) -> list[Claim]:
    """Run a table or figure of Delta-FL; a search makes no claims."""
    if figure == "search":
        search(places)
        return []
    if figure == "fig3":
        return toy_claims(out / "delta_fl-toy.png")
    return device_claims(places) if figure == "table1" else delta_fl_figure_claims(figure, places)


def pairs_of(figure: DeltaFLItem) -> Sequence[str]:
    """The pairs of data and network that a table or figure of Delta-FL has."""
    if figure == "table1":
        return tuple(TABLE)
    return DELTA_FL[figure].pairs if figure in DELTA_FL else runs.PAIRS


def finish(claims: Sequence[Claim], json: Path | None) -> None:
    """Print the claims, write them if asked to, and exit with code 1 if one fails."""
    if claims:
        show(claims)
    if json is not None:
        records = [claim._asdict() | {"passed": bool(claim.passed)} for claim in claims]
        json.write_text(dumps(records, indent=2) + "\n")
    if not all(claim.passed for claim in claims):
        raise SystemExit(1)


if __name__ == "__main__":
    auto_cli({"srpfl": srpfl, "delta_fl": delta_fl, "fedmac": fedmac, "deprl": deprl})
