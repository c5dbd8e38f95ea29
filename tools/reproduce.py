"""Runs the experiments behind a figure of a paper and checks the paper's claims about it.

Example: ``python tools/reproduce.py srpfl fig3 --scale small --root DIR``; DIR holds one folder of files for each data
set, such as ``DIR/cifar10``. Finished runs are kept in ``--out`` and not repeated; an interrupted command resumes.
"""

from json import dumps
from pathlib import Path
from typing import Literal

from jsonargparse import auto_cli
from reproduction.claims import show
from reproduction.srpfl.figures import FIGURES, SEEDS, FigureName, Scale, figure_claims
from reproduction.srpfl.linear import linear_claims

from pfl_lightning.cli.console import complain, keep_quiet


def srpfl(
    figure: Literal[FigureName, "linear"],
    scale: Scale = "small",
    root: Path = Path("data"),
    out: Path = Path("reproduce"),
    seeds: list[int] | None = None,
    jobs: int = 1,
    json: Path | None = None,
) -> None:
    """Run the experiments of a figure of SRPFL and check its claims; the exit code is 1 if one fails.

    Args:
        figure: Which figure; ``linear`` stands for the numerical experiments of the theory.
        scale: ``small`` runs on two CPU cores, ``full`` is the paper's setting.
        root: Folder with a folder of files for each data set.
        out: Folder for runs and figures.
        seeds: Seeds to run; by default 10 at small scale, the paper's 10, 20, 30 and 40 at full scale.
        jobs: Number of runs at the same time.
        json: File to which one record per claim is written.
    """
    keep_quiet()
    if scale == "small" and figure != "linear" and not FIGURES[figure].small:
        complain(
            f"scale: small is not possible for {figure}, which needs the users of the whole Sent140; allowed: full"
        )
        raise SystemExit(2)
    folder = out / f"srpfl-{figure}-{scale}"
    folder.mkdir(parents=True, exist_ok=True)
    if figure == "linear":
        claims = linear_claims(figure=folder / "linear.png")
    else:
        claims = figure_claims(FIGURES[figure], scale, root, folder, seeds or SEEDS[scale], jobs)
    show(claims)
    if json is not None:
        records = [claim._asdict() | {"passed": bool(claim.passed)} for claim in claims]
        json.write_text(dumps(records, indent=2) + "\n")
    if not all(claim.passed for claim in claims):
        raise SystemExit(1)


if __name__ == "__main__":
    auto_cli({"srpfl": srpfl})
