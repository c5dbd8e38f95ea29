"""Draws the test accuracy of runs against simulated time and against rounds, from their ``metrics.csv``.

Example: ``python tools/plot_runs.py --runs [runs/FedRep-Digits/version_0] --figure docs/quickstart.png``
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import yaml
from jsonargparse import auto_cli
from matplotlib.axes import Axes

SHOWN = {"refitted": "-", "global": "--"}  # line styles of the judged models


def read(run: Path) -> list[dict[str, float]]:
    """The evaluated rounds of a run."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return [row for row in rows if any(name.startswith("test/") for name in row)]


def label(run: Path) -> str:
    """The method of a run, and whether its cohort doubles."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    callbacks = [callback["class_path"] for callback in config["trainer"].get("callbacks") or []]
    method = config["model"]["class_path"].rpartition(".")[2]
    return f"{method}-SRPFL" if any(name.endswith("StageDoubling") for name in callbacks) else method


def draw(axes: Axes, run: Path, color: str, x: str) -> None:
    """One line per judged model that the run has."""
    rows = read(run)
    for model, style in SHOWN.items():
        name = f"test/{model}/accuracy/mean"
        if name in rows[0]:
            axes.plot(
                [row[x] for row in rows],
                [100 * row[name] for row in rows],
                style,
                color=color,
                label=f"{label(run)} {model}",
            )


def main(runs: list[Path], figure: Path, title: str = "") -> None:
    """Draw runs.

    Args:
        runs: Run folders.
        figure: Where the picture goes; its ending says the format.
        title: Text above the picture.
    """
    canvas, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axes, (x, text) in zip(
        panels, (("time/total", "simulated seconds"), ("round", "communication rounds")), strict=True
    ):
        for number, run in enumerate(runs):
            draw(axes, run, f"C{number}", x)
        axes.set_xlabel(text)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean test accuracy of the clients (%)")
    panels[1].legend(loc="lower right")
    canvas.suptitle(title)
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=120)


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
