"""DePRL's Figures 2 and 3: accuracy against rounds, and how alike clients are."""

from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_lightning import load_method
from pfl_lightning.metrics import pair_correlation, pairs
from pfl_lightning.report import cosine_figure, save_figure
from pfl_lightning.server import cosines
from reproduction.claims import Claim, ours, paired, spread
from reproduction.deprl.runs import ALPHAS, GOSSIP, GRAPHS, curves, folder, sweep
from reproduction.runs import Place, compare, split_data

ALIKE = 0.99  # what a cosine c of two bodies has to be as (c + 1) / 2, which the authors' code draws


class Maps(NamedTuple):
    """Cosines between clients, ``[clients, clients]`` each.

    Attributes:
        data: Of their training samples of each class.
        heads: Of their heads.
        bodies: Of their bodies.
    """

    data: Tensor
    heads: Tensor
    bodies: Tensor


def fig2_claims(place: Place) -> list[Claim]:
    """Figure 2: the runs of Table 1 against rounds, in a folder for each concentration; makes no claims."""
    trained = curves(place, [sweep(place, method) for method in GOSSIP])
    for alpha in ALPHAS:
        shown = (trained[folder(method, graph, alpha)].runs for method, graph in product(GOSSIP, GRAPHS))
        compare(place, chain.from_iterable(shown), f"fig2_alpha={alpha}")
    return []


def fig3_claims(place: Place) -> list[Claim]:
    """Figure 3: clients with similar data have similar heads, and all bodies are alike; of DePRL's runs on the ring."""
    trained = curves(place, [sweep(place, "deprl", ("Ring",))])
    claims = []
    for alpha in ALPHAS:
        data = split_data([*place.options, f"--data.partition.alpha={alpha}"])
        counts = torch.from_numpy(data.class_counts()["train"])
        found = [maps(run.folder, counts) for run in trained[folder("deprl", "Ring", alpha)].runs]
        first = {name: entries.numpy() for name, entries in found[0]._asdict().items()}
        save_figure(cosine_figure(first, counts.numpy()), place.folder / f"fig3_alpha={alpha}.png")
        claims += alike(alpha, found)
    return claims


def maps(run: Path, counts: Tensor) -> Maps:
    """The cosines at the end of a run.

    Args:
        run: Its folder.
        counts: Training samples of each client and class, ``[clients, classes]``.
    """
    method = load_method(run / "checkpoints/last.ckpt")
    own = [sorted(method.parts[part] & method.engine.trainable) for part in ("head", "body")]
    products = [counts.double() @ counts.double().T, *map(method.clients.inner_products, own)]
    return Maps(*(cosines(each).cpu() for each in products))


def alike(alpha: float, found: Sequence[Maps]) -> list[Claim]:
    """What Figure 3 shows, of some runs that differ in their seed."""
    correlations = np.array([float(pair_correlation(each.data, each.heads)) for each in found])
    smallest = np.array([float(pairs(each.bodies).min() + 1) / 2 for each in found])
    text, other = (
        "correlation of the cosines of heads with those of data",
        "smallest cosine c of two bodies, as (c + 1) / 2",
    )
    return [
        paired(f"alpha {alpha}: {text}", spread(correlations), "above 0", correlations),
        *ours([paired(f"alpha {alpha}: {other}", spread(smallest, 4), f"above {ALIKE}", smallest - ALIKE)]),
    ]
