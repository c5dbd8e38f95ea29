"""Runs the experiments behind a table or figure of a paper and checks the paper's claims about it.

Examples: ``python tools/reproduce.py srpfl fig3 --scale small --root DIR`` and ``python tools/reproduce.py delta_fl
table2 --root DIR``; DIR holds one folder of files for each data set, such as ``DIR/cifar10``. Finished runs are kept in
``--out`` and not repeated; an interrupted command resumes.
"""

import logging
import shlex
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pandas as pd
from jsonargparse import auto_cli
from reproduction.check import check
from reproduction.claims import FAILS, Claim, show
from reproduction.items import Item, Scale, papers

from pfl_lightning.errors import PflError


def reproduce(
    paper: str,
    item: str,
    scale: Scale = "small",
    root: Path = Path("data"),
    out: Path = Path("reproduce"),
    pairs: list[str] | None = None,
    seeds: list[int] | None = None,
    jobs: int = 1,
    csv: Path | None = None,
) -> None:
    """Run the experiments of a table or figure and check the paper's claims; the exit code is 1 if one fails.

    Args:
        paper: The paper: srpfl, delta_fl, fedmac or deprl; or the library: pfllib, niid_bench or htfllib;
            ``stragglers`` compares what there is against these, and ``attacks`` how safe methods are, which no paper
            does; ``lora`` has tasks on which methods with adapters differ, and ``details`` what codes of a method do
            differently.
        item: Its table or figure: the name of a file in ``tools/reproduction/PAPER``, whose first lines say what it
            shows. Any other name lists them.
        scale: ``small`` takes two CPU cores minutes or hours; ``two_cores`` has the paper's numbers of clients and
            rounds (PFLlib: all samples, for some methods), with whatever else two cores can bear; ``full`` is the
            paper's setting as far as it is known.
        root: Folder with a folder of files for each data set.
        out: Folder for runs and figures.
        pairs: Pairs of data and network, or of DePRL data sets; by default all of the table or figure.
        seeds: Seeds to run; by default the paper's at full scale.
        jobs: Number of runs at the same time; those of ``stragglers`` are made one after another.
        csv: File to which one row per claim is written, with this commit and command, though runs that are finished
            can be of older ones; none is made where there are no claims.
    """
    keep_quiet()
    made = command(paper, item, scale, pairs=pairs, seeds=seeds)
    origin = {"paper": paper, "item": item, "scale": scale, "commit": commit(), "command": made}
    try:
        if csv is not None and (csv.is_dir() or not csv.parent.is_dir()):
            raise PflError(f"csv: {csv} is not possible; allowed: a file in an existing folder")
        if out.exists() and not out.is_dir():
            raise PflError(f"out: {out} is not possible; allowed: a folder")
        check_names("paper", [paper], papers(), "tools/reproduce.py")
        asked = Item(paper, item)
        check_names("scale", [scale], asked.scales, item)
        possible = asked.pairs_at(scale)
        check_names("pairs", pairs or (), possible, f"{item} at {scale} scale")
        claims = check(asked.part(pair, scale, root, out, seeds, jobs) for pair in pairs or possible or [""])
    except PflError as error:
        print(f"reproduce: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    finish(claims, origin, csv)


def keep_quiet() -> None:
    """Silence what Lightning says of the trainers that run in this process."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")


def check_names(key: str, names: Iterable[str], possible: Collection[str], where: str) -> None:
    """Refuse names that a table or figure does not have.

    Raises:
        PflError: If there is one.
    """
    if wrong := [name for name in names if name not in possible]:
        raise PflError(f"{key}: {wrong[0]} is not possible for {where}; allowed: {', '.join(possible) or 'none'}")


def command(paper: str, item: str, scale: str, **options: Sequence[object] | None) -> str:
    """The command of these results, wherever the files and the runs are."""
    told = [f"--{key}=[{','.join(map(str, values))}]" for key, values in options.items() if values]
    return shlex.join(["python", "tools/reproduce.py", paper, item, "--scale", scale, *told, "--root", "DIR"])


def commit() -> str:
    """The commit of this code, and whether there is more."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()


def finish(claims: Sequence[Claim], origin: dict[str, str], csv: Path | None) -> None:
    """Print the claims, write them if asked to, and exit with code 1 if one fails."""
    if claims:
        show(claims)
    if csv is not None and claims:
        pd.DataFrame([claim._asdict() | origin for claim in claims]).to_csv(csv, index=False)
    if any(claim.verdict == FAILS for claim in claims):
        raise SystemExit(1)


if __name__ == "__main__":
    auto_cli(reproduce)
