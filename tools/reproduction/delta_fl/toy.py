"""The toy of Delta-FL's Figure 3, three devices of Gaussian data: numbers and a picture.

Derivations: docs/evidence/derivations.md, Three Gaussians.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from theory.superquantile import gaussian_losses, narrowed, superquantile_loss, superquantile_minimizer
from torch import Tensor

from pfl_lightning.report import save_figure
from pfl_lightning.report.drawing import grid, looks_of
from pfl_lightning.seeding import seed_of
from reproduction.items import Part
from reproduction.results import Numbers

OBTUSE = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
ACUTE = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
CONFORMITY = 2 / 3
NAMES = ("FedAvg", "Delta-FL")
SHOWN = 20_000  # of them in the picture
DRAWS = 200_000  # test devices, drawn uniformly from those with the conformity
SIMPLEX = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)  # where mixtures are drawn
COLOR_OF = {name: look["color"] for name, look in zip(NAMES, looks_of(NAMES), strict=True)}


class Model(NamedTuple):
    """A model of the toy.

    Attributes:
        point: Where it is, ``[2]``.
        losses: Its loss on each training device, ``[3]``.
        test_losses: Its loss on each of the test devices that were drawn, ``[DRAWS]``.
    """

    point: Tensor
    losses: Tensor
    test_losses: Tensor


def models() -> dict[str, Model]:
    """FedAvg's and Delta-FL's model, evaluated on the same test devices of conformity 2/3."""
    mixtures = narrowed(uniform_mixtures(DRAWS), CONFORMITY)
    found = {}
    for name, conformity in zip(NAMES, (1.0, CONFORMITY), strict=True):
        point = superquantile_minimizer(OBTUSE, conformity)
        losses = gaussian_losses(point, OBTUSE)
        found[name] = Model(point, losses, mixtures @ losses)
    return found


def uniform_mixtures(number: int) -> Tensor:
    """Weights of three devices, uniform among all that sum to 1, ``[number, 3]``."""
    random = torch.Generator().manual_seed(seed_of("mixtures of the toy"))
    times = torch.rand(number, 3, generator=random, dtype=torch.float64).log().neg()  # exponential
    return times / times.sum(-1, keepdim=True)


def numbers(part: Part) -> Numbers:
    """Draw what Figure 3 shows, and what its claims are about; takes a second."""
    found = models()
    draw(found, part.place.folder / "fig3.png")
    x, y = superquantile_minimizer(OBTUSE, CONFORMITY).tolist()
    acute_x, acute_y = superquantile_minimizer(ACUTE, CONFORMITY).tolist()
    facts = {"obtuse x": x, "obtuse y": y, "acute x": acute_x, "acute y": acute_y}
    for name, model in found.items():
        facts[f"largest loss {name}"] = float(superquantile_loss(model.losses, CONFORMITY))
        facts[f"deviation {name}"] = float(model.test_losses.std())
        facts[f"mean loss {name}"] = float(model.losses.mean())
    better = found["Delta-FL"].test_losses < found["FedAvg"].test_losses
    return {**facts, "better": float(better.double().mean())}


# The picture


def draw(found: dict[str, Model], path: Path) -> None:
    """Draw the plane of the models, the test devices, and their losses side by side."""
    with grid(12.5, 3.4, 1, 3, width_ratios=(1.5, 1.1, 1)) as (figure, ((plane, mixtures, histogram),)):
        draw_plane(plane, found)
        draw_mixtures(mixtures, found)
        draw_histogram(histogram, found)
        save_figure(figure, path, dpi=150)


def draw_plane(axes: Axes, found: dict[str, Model]) -> None:
    """Level sets of the superquantile, with the devices and both models."""
    x, y = torch.linspace(-0.6, 4.6, 261).double(), torch.linspace(-1.0, 1.6, 131).double()
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    values = superquantile_loss(gaussian_losses(points, OBTUSE), CONFORMITY)
    levels = [3.05, 3.2, 3.5, 4, 5, 6]
    lines = axes.contour(x, y, values, levels=levels, colors="0.65", linewidths=0.8)
    axes.clabel(lines, levels[1:], fontsize=7)
    axes.grid(False)
    axes.fill(*OBTUSE.T, facecolor="none", edgecolor="0.3", linestyle=":")
    axes.plot(*OBTUSE.T, "k^", markersize=6)
    for number, device in enumerate(OBTUSE, start=1):
        label(axes, device, f"device {number}", "black", above=number == 3)
    for marker, (name, model) in zip("os", found.items(), strict=True):
        axes.plot(*model.point, marker, color=COLOR_OF[name], markersize=7)
        label(axes, model.point, name, COLOR_OF[name], above=name == "FedAvg")
    axes.set(title="level sets of the largest loss of a test device", aspect="equal", xlabel="$w_1$", ylabel="$w_2$")


def label(axes: Axes, point: Tensor, text: str, color: str, above: bool = False) -> None:
    """A name under a point, or above it."""
    offset, side = ((0, 7), "bottom") if above else ((0, -7), "top")
    where = (float(point[0]), float(point[1]))
    axes.annotate(text, where, offset, textcoords="offset points", ha="center", va=side, color=color, fontsize=8)


def draw_mixtures(axes: Axes, found: dict[str, Model]) -> None:
    """The test devices of conformity 2/3 among all mixtures, coloured by which model serves them better."""
    mixtures = narrowed(uniform_mixtures(DRAWS), CONFORMITY)[:SHOWN]
    gain = mixtures @ (found["FedAvg"].losses - found["Delta-FL"].losses)
    most = float(gain.abs().max())
    both = LinearSegmentedColormap.from_list("both", [COLOR_OF["FedAvg"], "white", COLOR_OF["Delta-FL"]])
    x, y = (mixtures @ SIMPLEX).T
    colors = axes.scatter(x, y, s=2, c=gain, cmap=both, vmin=-most, vmax=most, rasterized=True)
    axes.fill(*SIMPLEX.T, facecolor="none", edgecolor="0.3", linestyle=":")
    for number, corner in enumerate(SIMPLEX[:2], start=1):
        label(axes, corner, f"only device {number}", "black")
    label(axes, SIMPLEX[2], "only device 3", "black", above=True)
    axes.set_title("test devices of conformity 2/3, as mixtures", pad=18)
    axes.set_aspect("equal")
    axes.set_axis_off()
    bar = axes.figure.colorbar(colors, ax=axes, shrink=0.9)
    bar.set_label("loss of FedAvg - loss of Delta-FL")


def draw_histogram(axes: Axes, found: dict[str, Model]) -> None:
    """How the losses of test devices spread, and their largest."""
    for name, model in found.items():
        worst = float(superquantile_loss(model.losses, CONFORMITY))
        text = f"{name}, at most {worst:.2f}"
        axes.hist(model.test_losses, bins=40, density=True, alpha=0.5, color=COLOR_OF[name], label=text)
        axes.axvline(worst, color=COLOR_OF[name], linestyle="--")
    axes.set(title="test devices, drawn uniformly", xlabel="loss of a test device", ylabel="density", ylim=(0, 5.2))
    axes.legend(fontsize=8, loc="upper left")
